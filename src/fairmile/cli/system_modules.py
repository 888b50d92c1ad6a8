"""`fairmile system modules` and `eval`: print module blocks, and update those of a script."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.cli.job_options import with_variant
from fairmile.cli.out import Out, count, json_output
from fairmile.systems.blocks import Block, Evaluation
from fairmile.workspace import Workspace

_PARTITION = click.option(
    "--partition",
    default="",
    metavar="NAME",
    help="Use the lines for this partition.  [default: the framework's usual one]",
)


@click.command()
@click.argument("system")
@click.argument("software", nargs=-1, required=True)
@_PARTITION
@click.option("--variant", default="", metavar="NAME", help="Variant of the software, such as container.")
@json_output(Block)
def modules(system: str, software: tuple[str, ...], partition: str, variant: str, out: Out) -> int:
    """Print the module lines of frameworks on a system, between the markers that `eval` reads.

    The lines come from the system's file. Notes on stderr say where published rules
    differ, or where nobody verified the lines.

    \b
    Examples:
      fairmile system modules deep ddp
      fairmile system modules jureca ddp --partition dc-mi200
      fairmile system modules lumi ddp --variant container
    """
    block = Workspace.open().systems[system].modules(*with_variant(software, variant), partition=partition)
    out.show(block, lambda block: _print_block(out, block))
    return 0


def _print_block(out: Out, block: Block) -> None:
    out.document(block.text)
    _print_notes(block.notes, out)


@click.command("eval")
@click.argument("script", type=click.Path(path_type=Path))
@click.option("--to", default="", metavar="SYSTEM", help="Move every block to this system.")
@click.option("--add", multiple=True, metavar="SOFTWARE", help="Add this software to every block; repeatable.")
@click.option("--remove", multiple=True, metavar="SOFTWARE", help="Remove this software from every block; repeatable.")
@_PARTITION
@click.option("--write", is_flag=True, help="Change the file instead of printing the difference.")
@json_output(Evaluation)
def eval_(
    script: Path, to: str, add: tuple[str, ...], remove: tuple[str, ...], partition: str, write: bool, out: Out
) -> int:
    """Update the module blocks of a script, and print what changes.

    Lines outside the markers stay unchanged. With --to, notes name the #SBATCH lines
    that the new system would refuse.

    \b
    Examples:
      fairmile system eval train.sh
      fairmile system eval train.sh --to jureca --add horovod --remove heat
    """
    systems = Workspace.open().systems
    evaluation = systems.evaluate_file(script, to=to, add=add, remove=remove, partition=partition, write=write)
    out.show(evaluation, lambda evaluation: _print_evaluation(out, evaluation))
    return 0


def _print_evaluation(out: Out, evaluation: Evaluation) -> None:
    if not evaluation.changed:
        out.say(f"{evaluation.file}: nothing to change")
    elif evaluation.written:
        names = "; ".join(" ".join([block.system, *block.software]) for block in evaluation.blocks)
        out.line(f"changed {evaluation.file}: {count(len(evaluation.blocks), 'block')} ({names})")
    else:
        out.document(evaluation.diff.encode("utf-8", "surrogateescape"))
    _print_notes(evaluation.notes, out)
    if evaluation.changed and not evaluation.written:
        out.hint("--write changes the file")


def _print_notes(notes: tuple[str, ...], out: Out) -> None:
    for note in notes:
        out.say(f"note: {note}")
