"""The dialect of a batch system called Pier. It only builds commands and reads text; Fairmile runs the commands."""

import re
from collections.abc import Mapping, Sequence

from fairmile.base.commands import Result
from fairmile.base.errors import SystemFailure, Transient, Unsupported, UsageError
from fairmile.jobs.directives import checked_key
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.states import Observed, State

_STATES = {
    "WAITING": (State.QUEUED, ""),
    "ABOARD": (State.RUNNING, ""),
    "LANDED": (State.DONE, ""),
    "SUNK": (State.FAILED, "The program failed."),
    "RECALLED": (State.CANCELLED, "The job was cancelled."),
}
_LINE = re.compile(r"(\d+) ([A-Z]+)")


class Pier:
    """`pier submit FILE`, `pier list ID…`, `pier recall ID…`."""

    name = "pier"
    variables: Mapping[str, str] = {
        "FAIRMILE_JOB_ID": "$PIER_ID",
        "FAIRMILE_ARRAY_INDEX": "$PIER_INDEX",
        "FAIRMILE_NODES": "$PIER_NODES",
    }

    def header(self, request: Request, files: JobFiles) -> list[str]:
        if request.spec.array is not None:
            raise Unsupported("pier has no job arrays", hint="submit the jobs one by one, or pack them")
        if not files.folder.isprintable() or '"' in files.folder:  # else it could break out of its line
            raise UsageError(f"{files.folder!r} is no folder for a job of pier")
        checked_key(files)
        wanted = {
            "name": request.spec.name,
            "berth": request.partition,
            "account": request.account,
            "nodes": request.nodes,
            "minutes": int(request.time_s // 60) if request.time_s else None,
        }
        return [f"#PIER {key}={value}" for key, value in wanted.items() if value]

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        def read(result: Result) -> str:
            found = re.fullmatch(r"ticket (\d+)", _output(result).strip())
            if found is None:
                raise SystemFailure(f"pier refused the job: {result.stderr.strip()[:300]}")
            return found[1]

        return Question(("pier", "submit", script), read)

    def find(self, key: str) -> Question[str | None]:
        return Question(("true",), lambda result: None)  # pier keeps no keys

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        def read(result: Result) -> dict[str, Observed]:
            lines = (_LINE.fullmatch(line) for line in _output(result).splitlines())
            return {line[1]: _observed(line[2]) for line in lines if line and line[1] in ids}

        return Question(("pier", "list", *ids), read)

    def history(self, ids: Sequence[str]) -> None:
        return None  # `pier list` knows jobs that ended

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        def read(result: Result) -> None:
            _output(result)  # jobs that ended before are no error, a scheduler that is not there is one

        return Question(("pier", "recall", *ids), read)


def _observed(word: str) -> Observed:
    state, sentence = _STATES.get(word, (State.UNKNOWN, ""))  # a word that nobody knows is no error
    return Observed(state, word, sentence=sentence)


def _output(result: Result) -> str:
    if "harbour closed" in result.stderr:
        raise Transient("pier does not answer: harbour closed")  # Fairmile asks again later
    return result.stdout
