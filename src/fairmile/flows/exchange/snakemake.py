"""A flow as a Snakefile: one rule for each step, with its command, its files and the order of the flow.

A step without outputs, or whose outputs are patterns, leaves a mark below `.flow/`, and what comes after it waits for
that.
"""

from __future__ import annotations

import shlex

from fairmile.flows.exchange import ExportedFlow, ExportedStep, check_expressible, command_text, task_names
from fairmile.flows.graph import is_wild

_MARKS = ".flow"


def export(flow: ExportedFlow) -> str:
    """Return the Snakefile of a flow."""
    check_expressible(flow, "a Snakefile", {"done"})
    names = task_names(flow, reserved={"all"})
    marks = {step.name: f"{_MARKS}/{names[step.name]}" for step in flow.steps if _needs_mark(step)}
    files = {step.name: [each for each in step.outputs if not is_wild(each)] for step in flow.steps}
    results = {
        step.name: [*files[step.name], *([marks[step.name]] if step.name in marks else [])] for step in flow.steps
    }
    wanted = [each for step in flow.steps for each in results[step.name]]
    parts = [f"# The flow {flow.name}, written by `fairmile flow export`.\n", _rule("all", inputs=wanted)]
    for step in flow.steps:
        before = [each for need in step.needs for each in results[need]]
        inputs = list(dict.fromkeys([*(each for each in step.inputs if not is_wild(each)), *before]))
        parts.append(_rule(names[step.name], inputs, files[step.name], marks.get(step.name, ""), step))
    return "\n".join(parts)


def _needs_mark(step: ExportedStep) -> bool:
    return not step.outputs or any(map(is_wild, step.outputs))


def _rule(
    name: str,
    inputs: list[str],
    outputs: list[str] | None = None,
    mark: str = "",
    step: ExportedStep | None = None,
) -> str:
    lines = [f"rule {name}:"]
    lines += ["    input:", *(f"        {_literal(each)}," for each in inputs)] if inputs else []
    made = [_literal(each) for each in outputs or ()] + ([f"touch({_literal(mark)})"] if mark else [])
    lines += ["    output:", *(f"        {each}," for each in made)] if made else []
    if step is not None:
        lines += [f"    retries: {step.retries}"] if step.retries else []
        lines += [f"    threads: {step.cores}"] if step.cores > 1 else []
        lines += ["    resources:", f"        system={step.on!r},"] if step.on != "local" else []
        lines += ["    shell:", f"        {_literal(_command(step))}"]
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    """Return a text as Python writes it; braces are doubled, since Snakemake fills them in."""
    return repr(text.replace("{", "{{").replace("}", "}}"))


def _command(step: ExportedStep) -> str:
    variables = [f"export {shlex.quote(f'{name}={value}')}" for name, value in step.env.items()]
    return " && ".join([*variables, command_text(step)])
