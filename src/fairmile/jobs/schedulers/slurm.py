"""Slurm's dialect: sbatch, squeue, sacct and scancel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from fairmile.base.commands import MissingProgram, Result
from fairmile.base.errors import FairmileError, SystemFailure, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.directives import slurm_directives
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.schedulers.answers import message_of, no_answer
from fairmile.jobs.schedulers.slurm_words import HELD_REASONS, NOT_SET_UP, STATES, TRANSIENT, WRONG, explain
from fairmile.jobs.states import Observed, State, Usage

_ID = re.compile(r"(?P<base>\d+)(_(?P<index>\d+))?")
_FIRST_PART = "+0"  # of a heterogeneous job, which runs the script; the others (7+1) are not asked about
_STEP = re.compile(r"([^.]+)\.(\w+)")
_ACCEPTED = re.compile(r"(\d+)(;\S+)?")  # in a federation the cluster follows
_LONGEST_LIST = 60_000  # characters; one argument of a command, such as what ssh hands on, holds 128 KiB
# Delimited, since a reason may have blanks in it; the reason comes last, since it may have anything in it.
_STATUS_FIELDS = ("JobArrayID", "State", "exit_code", "RestartCnt", "NodeList", "Reason")
_HISTORY_FIELDS = (
    "JobID",
    "State",
    "ExitCode",
    "ElapsedRaw",
    "TotalCPU",
    "MaxRSS",
    "ConsumedEnergyRaw",
    "NodeList",
    "Reason",
)
_NO_NODES = ("None assigned", "(null)")
_UNSET = 1 << 62  # Slurm writes values near 2⁶⁴ where it has none


class Slurm:
    """Slurm, 20.11 or later; exercised against 22.05."""

    name = "slurm"
    variables: Mapping[str, str] = {
        # SLURM_JOB_ID is another number in each task of an array.
        "FAIRMILE_JOB_ID": "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}",
        "FAIRMILE_ARRAY_INDEX": "${SLURM_ARRAY_TASK_ID:-0}",
        "FAIRMILE_NODES": '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d " " -)',
    }

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """Return the #SBATCH lines."""
        return slurm_directives(request, files)

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """Ask sbatch to take a script."""
        # The header has the key as well, but there a later option of the system could replace it.
        key = (f"--comment={files.key}",) if files.key else ()
        return Question(("sbatch", "--parsable", *key, script), _read_submitted)

    def find(self, key: str) -> Question[str | None]:
        """Ask squeue for the job with a key; it knows a job for some minutes after its end (MinJobAge)."""

        def read(result: Result) -> str | None:
            check_answer(result, "squeue")
            rows = (line.partition("|") for line in result.stdout.splitlines())
            ids = [int(job) for job, _, comment in rows if comment == key and job.isdecimal()]
            return str(min(ids)) if ids else None

        return Question(("squeue", "--me", "-h", "-t", "all", "-o", "%F|%k"), read)

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """Ask squeue; of an array that is asked for by its own id, the answer has every task."""
        asked = frozenset(ids)
        listed = ",".join(_bases(ids))
        which = ("-j", listed) if len(listed) <= _LONGEST_LIST else ("--me",)
        fields = ",".join(f"{name}:|" for name in _STATUS_FIELDS)

        def read(result: Result) -> dict[str, Observed]:
            if result.exit_code != 0 and "Invalid job id" in result.stderr:  # none of them is known any more
                return {}
            check_answer(result, "squeue")
            return {job: seen for job, seen in map(_read_status, result.stdout.splitlines()) if _wanted(job, asked)}

        return Question(("squeue", "-h", "-r", "-t", "all", *which, "-O", fields), read)

    def history(self, ids: Sequence[str]) -> Question[dict[str, Observed]] | None:
        """Ask sacct, which also tells what a job used; Unsupported where the site keeps no accounting.

        An array that was cancelled before any task started may be one answer under its own id.
        """
        asked = frozenset(ids)

        def read(result: Result) -> dict[str, Observed]:
            check_answer(result, "sacct")
            return {job: run.observed() for job, run in _last_runs(result.stdout).items() if _wanted(job, asked)}

        options = ("-n", "-P", "-D", "--noconvert", "-o", ",".join(_HISTORY_FIELDS))
        return Question(("sacct", *options, "-j", ",".join(_bases(ids))), read)

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """Ask scancel; many tasks of one array are one word to it."""

        def read(result: Result) -> None:
            gone = ("Invalid job id", "already completing or completed")
            rest = [line for line in result.stderr.splitlines() if line and not any(word in line for word in gone)]
            check_answer(replace(result, exit_code=result.exit_code if rest else 0), "scancel")

        return Question(("scancel", *_compressed(ids)), read)


def _read_submitted(result: Result) -> str:
    check_answer(result, "sbatch")
    for line in reversed(result.stdout.splitlines()):  # a site's own remarks may stand before it
        if match := _ACCEPTED.fullmatch(line.strip()):
            return match[1]
    raise SystemFailure(f"sbatch returned no job id: {result.stdout.strip()[:200]!r}")


def _read_status(line: str) -> tuple[str, Observed]:
    row = line.strip().removesuffix("|").split("|", len(_STATUS_FIELDS) - 1)
    if len(row) != len(_STATUS_FIELDS):
        return "", Observed(State.UNKNOWN)
    job, native, status, restarts, nodes, reason = (word.strip() for word in row)
    job = job.removesuffix(_FIRST_PART)
    state = _state(native, reason)
    code, signal = _exit(state, status)
    if state is State.CANCELLED and not reason.startswith("Dependency"):
        reason = ""  # it is still why the job did not start, not why it ended
    seen = Observed(state, native, _reason(reason), exit_code=code, signal=signal, nodes=_nodes(nodes))
    return job, replace(seen, restarts=whole_number(restarts) or 0, sentence=explain(seen))


@dataclass
class _Run:
    """What sacct has on one run of a job: a row of its own and one for each step."""

    row: list[str]
    restarts: int
    steps: list[list[str]] = field(default_factory=list)

    def observed(self) -> Observed:
        _, native, status, elapsed, cpu, _, energy, nodes, reason = self.row
        native, state = native.partition(" ")[0], _state(native, reason)  # CANCELLED by 1000
        code, signal = _exit(state, status)
        rss = [size for row in (self.row, *self.steps) if (size := whole_number(row[5]))]
        joules = consumed_j(energy, (step[6] for step in self.steps))
        usage = Usage(
            source="sacct",
            elapsed_s=None if (seconds := whole_number(elapsed)) is None else float(seconds),
            cpu_s=cpu_seconds(cpu),
            max_rss_bytes=max(rss, default=None),
            energy_j=None if joules is None else float(joules),
        )
        seen = Observed(
            state,
            native,
            # Of a job that ended, sacct still gives why it waited.
            "" if state.is_end else _reason(reason),
            exit_code=code,
            signal=signal,
            nodes=_nodes(nodes),
            restarts=self.restarts,
            usage=usage,
        )
        return replace(seen, sentence=explain(seen))


def _last_runs(text: str) -> dict[str, _Run]:
    """Return the last run of each job: one that was requeued has several, under the same id."""
    runs: dict[str, _Run] = {}
    for line in text.splitlines():
        row = line.split("|", len(_HISTORY_FIELDS) - 1)
        if len(row) != len(_HISTORY_FIELDS):
            continue
        row[0] = row[0].replace(_FIRST_PART, "", 1)
        step = _STEP.fullmatch(row[0])
        if step is None:
            for job in _tasks(row[0]):
                runs[job] = _Run(row, restarts=runs[job].restarts + 1 if job in runs else 0)
        elif step[1] in runs:
            runs[step[1]].steps.append(row)
    return runs


def _tasks(job: str) -> list[str]:
    """Return the ids that a row is about: tasks of an array that never started share one, 7_[0-3,8%2]."""
    match = re.fullmatch(r"(\d+)_\[([^%\]]*).*", job)
    if match is None:
        return [job]
    # A long list is cut off: what is left of its last word is not a number.
    words = (re.fullmatch(r"(\d+)(?:-(\d+))?", word) for word in match[2].split(","))
    ranges = (range(int(word[1]), int(word[2] or word[1]) + 1) for word in words if word)
    return [f"{match[1]}_{index}" for numbers in ranges for index in numbers]


def _wanted(job: str, asked: frozenset[str]) -> bool:
    match = _ID.fullmatch(job)
    return match is not None and (job in asked or match["base"] in asked)


def _bases(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(_parts(job)[0] for job in ids))


def _compressed(ids: Iterable[str]) -> list[str]:
    """Return the ids with the tasks of one array in one word: 7_[0-3,8]."""
    indices: dict[str, set[int] | None] = {}
    for job in ids:
        base, index = _parts(job)
        known = indices.setdefault(base, set())
        if index is None or known is None:
            indices[base] = None
        else:
            known.add(index)
    return [base if tasks is None else f"{base}_[{_ranges(tasks)}]" for base, tasks in indices.items()]


def _ranges(numbers: set[int]) -> str:
    words: list[str] = []
    for first in sorted(number for number in numbers if number - 1 not in numbers):
        last = first
        while last + 1 in numbers:
            last += 1
        words.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(words)


def _parts(job: str) -> tuple[str, int | None]:
    match = _ID.fullmatch(job)
    if match is None:
        raise UsageError(
            f"{job!r} is not an id of a Slurm job", hint="expected a number such as 123, or 123_4 for a task"
        )
    return match["base"], None if match["index"] is None else int(match["index"])


def _state(native: str, reason: str) -> State:
    state = STATES.get(native.partition(" ")[0], State.UNKNOWN)
    return State.HELD if state is State.QUEUED and reason.strip("()").startswith(HELD_REASONS) else state


def _reason(word: str) -> str:
    return "" if word in ("None", "(null)") else word


def _nodes(word: str) -> str:
    return "" if word in _NO_NODES else word


def _exit(state: State, word: str) -> tuple[int | None, int | None]:
    """Return exit code and signal of a job that ended; an exit code of 0 counts only where it ended well."""
    if not state.is_end:
        return None, None
    first, colon, second = word.partition(":")
    code, signal = whole_number(first), whole_number(second)
    if not colon and code is not None:  # squeue gives what wait(2) does
        code, signal = code >> 8, code & 0x7F
    return (code if code or state is State.DONE else None), signal or None


def whole_number(word: str) -> int | None:
    """Return a number as Slurm prints it; None where it has none."""
    return int(word) if word.isdecimal() and int(word) < _UNSET else None


def cpu_seconds(word: str) -> float | None:
    """Read [DD-[HH:]]MM:SS[.mmm]."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", word)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def consumed_j(job: str, steps: Iterable[str]) -> int | None:
    """Read the energy of a job: its own, or else, as most sites record it, that of its steps.

    The step of the script covers the others. None where there is only 0, which Slurm writes without a sensor.
    """
    return whole_number(job) or max((whole_number(step) or 0 for step in steps), default=0) or None


def check_answer(result: Result, program: str) -> None:
    """Raise what is wrong where a command of Slurm failed."""
    if result.exit_code != 0:
        raise _failure(result, program)


def _failure(result: Result, program: str) -> FairmileError:
    words = message_of(result)
    for mark in (f"{program}: error: ", f"{program}: "):
        words = words.replace(mark, "")
    small = words.lower()
    if "accounting storage is disabled" in small:
        return Unsupported("this Slurm has no accounting", hint="its own files record how it ended")
    if any(word in small for word in NOT_SET_UP):
        return MissingProgram(f"{program} has no Slurm configuration: {words}")
    if any(word in small for word in TRANSIENT):
        return no_answer("Slurm", result)
    for word, hint in WRONG:
        if word in small:
            return UsageError(f"Slurm refuses: {words}", hint=hint)
    return SystemFailure(
        f"{program} failed: {words or f'exit code {result.exit_code} without a message'}",
        hint=f"run `{program}` yourself where Slurm runs",
    )
