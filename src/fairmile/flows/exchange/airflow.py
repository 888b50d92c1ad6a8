"""A flow as an Airflow DAG: one task for each step, with its command, its variables and the order of the flow.

The file needs Airflow 3 with its standard provider and nothing of Fairmile. `python FILE` runs it once without a
scheduler. Airflow would fill in Jinja templates, read a command that ends in `.sh` as a file, and take exit code 99 for
`skipped`: the tasks switch all three off.
"""

from __future__ import annotations

import os

from fairmile.flows.exchange import ExportedFlow, ExportedStep, check_expressible, command_text, task_names

_RULES = {"failed": "one_failed", "always": "all_done"}
_HEAD = '''\
"""The flow {name}, written by `fairmile flow export`."""

from datetime import timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

FOLDER = {folder!r}  # where paths of the flow begin


class Command(BashOperator):
    """Runs a command as it stands: nothing is filled in."""

    template_fields = ()
    template_ext = ()


tasks = {{}}
with DAG({id!r}, schedule=None, tags=["fairmile"]) as dag:
'''
_END = """

if __name__ == "__main__":
    dag.test()
"""


def export(flow: ExportedFlow) -> str:
    """Return the DAG file of a flow."""
    check_expressible(flow, "an Airflow DAG", {"done", *_RULES})
    names = task_names(flow)
    parts = [_HEAD.format(name=flow.name, folder=os.path.abspath(flow.folder), id=flow.name)]
    for step in flow.steps:
        arguments = ", ".join(f"{key}={value}" for key, value in _arguments(step, names[step.name]).items())
        parts.append(f"    tasks[{names[step.name]!r}] = Command({arguments})\n")
    for step in flow.steps:
        if step.needs:
            before = ", ".join(f"tasks[{names[need]!r}]" for need in step.needs)
            parts.append(f"    tasks[{names[step.name]!r}] << [{before}]\n")
    return "".join([*parts, _END])


def _arguments(step: ExportedStep, id: str) -> dict[str, str]:
    """Return the arguments of a task as Python writes them."""
    arguments = {"task_id": repr(id)}
    arguments |= {"task_display_name": repr(step.name)} if step.name != id else {}
    arguments |= {"bash_command": repr(command_text(step)), "cwd": "FOLDER"}
    arguments |= {"env": repr(dict(step.env))} if step.env else {}
    arguments |= {"append_env": "True", "skip_on_exit_code": "None", "retries": repr(step.retries)}
    if step.retries:
        arguments["retry_delay"] = f"timedelta(seconds={step.backoff_s!r})"
        arguments |= {"retry_exponential_backoff": "2"} if step.backoff_s else {}
    arguments |= {"execution_timeout": f"timedelta(seconds={step.timeout_s!r})"} if step.timeout_s else {}
    arguments |= {"trigger_rule": repr(_RULES[step.when])} if step.when in _RULES else {}
    arguments |= {"queue": repr(step.on)} if step.on != "local" else {}
    return arguments
