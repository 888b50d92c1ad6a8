"""Many short commands in one job: one allocation and one script for thousands of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.jobs.spec import JobSpec

_DRIVER = "pack.sh"
_COMMANDS = "pack.commands"
_START = f'. "$FAIRMILE_JOB_FOLDER/{_DRIVER}"'

_THREADS = "export OMP_NUM_THREADS=$((cores > slots ? cores / slots : 1))\n"

# One command is one line of the file of commands, so that the driver reads what it starts and nothing else. A command
# costs two forks: one that watches it and writes its notes with builtins alone, and its own.
_TEXT = r"""# Runs the commands of pack.commands, some at once; started again, those that ended with 0 are left out.
here=$FAIRMILE_JOB_FOLDER
export FAIRMILE_ARRAY_INDEX

note_start() {  # INDEX
  local now earlier=()
  if [ -e "$here/started.$1" ]; then mapfile -t earlier < "$here/started.$1"; fi
  printf -v now '%(%s)T' -1
  printf '{"host": "%s", "time": %s, "attempt": %s, "job": "%s"}\n' "${SLURMD_NODENAME:-$HOSTNAME}" "$now" \
    "$((${#earlier[@]} + 1))" "${FAIRMILE_JOB_ID:-}" >> "$here/started.$1"
}

if [ "${1:-}" = step ]; then  # on the node of a step, which alone knows its name
  note_start "$2"
  shift 2
  exec -- "$@"
fi

has_ended_well() {  # INDEX
  local line=
  [ -s "$here/ended.$1" ] || return 1
  IFS= read -r line < "$here/ended.$1"
  [[ $line == *'"exit_code": 0,'* && $line != *'"signal"'* ]]
}

run() {  # INDEX COMMAND
  local pid='' code now caught='' told='' name
  for name in TERM INT HUP USR1 USR2; do
    trap "caught=$name; [ -z \"\$pid\" ] || kill -s $name \"\$pid\" 2>/dev/null" "$name"
  done
  [ ! -e "$here/ended.$1" ] || : > "$here/ended.$1"
  [ -n "$steps" ] || note_start "$1"
  FAIRMILE_ARRAY_INDEX=$1
  eval "exec ${steps:---} $2" >> "$here/out.$1.log" 2>> "$here/err.$1.log" &
  pid=$!
  [ -z "$caught" ] || kill -s "$caught" "$pid" 2>/dev/null
  wait "$pid"; code=$?
  while [ -n "$caught" ] && kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done
  printf -v now '%(%s)T' -1
  [ -z "$caught" ] || told=", \"signal\": \"$caught\""
  printf '{"exit_code": %s, "time": %s, "job": "%s"%s}\n' "$code" "$now" "${FAIRMILE_JOB_ID:-}" "$told" \
    > "$here/ended.$1"
  exit 0
}

stopped=
for name in TERM INT HUP USR1 USR2; do
  trap "stopped=$name; kill -s $name \$(jobs -p) 2>/dev/null" "$name"
done

nodes=${SLURM_JOB_NUM_NODES:-1}
cores=$((nodes * ${SLURM_CPUS_ON_NODE:-$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 1)}))
slots=SLOTS
slots=${slots:-$cores}
THREADS
steps=
if [ "$nodes" -gt 1 ]; then
  slots=$((slots < cores ? slots : cores))
  # Without a limit of its own, the first step on a node would take all of the job's memory there.
  steps="srun -Q -N1 -n1 -c$((cores / slots)) --exact --mem=0 bash \"\$here/pack.sh\" step \"\$FAIRMILE_ARRAY_INDEX\""
fi

failed=0 running=0 index=0
reap() {  # Wait for the end of one; false where none is left.
  local code
  wait -n; code=$?
  if ((code == 127)); then running=0; return 1; fi
  if ((code > 128)) && [ -n "$stopped" ]; then return 0; fi  # a signal came between
  running=$((running - 1))
}
while [ -z "$stopped" ] && IFS= read -r command <&3; do
  if ! has_ended_well "$index"; then
    run "$index" "$command" 3<&- &
    running=$((running + 1))
    while ((running >= slots)); do reap; done
  fi
  index=$((index + 1))
done 3< "$here/pack.commands"
while reap; do :; done
if [ -n "$stopped" ]; then echo "stopped by $stopped before command $index" >&2; exit 1; fi
# What counts is the note of each end: who watched a command may have been killed before it could write one.
for ((each = 0; each < index; each++)); do has_ended_well "$each" || failed=$((failed + 1)); done
if ((failed > 0)); then echo "$failed of $index commands did not end with 0" >&2; exit 1; fi
exit 0
"""


def packed(
    commands: Sequence[Sequence[str]], *, at_once: int | None = None, wrap: Sequence[str] = (), **job: Any
) -> JobSpec:
    """Return one job that runs many short commands, `at_once` together or as many as the job has cores.

    Each command has a number from 0, output and an end of its own; `wrap` stands before each of them, and `job` are
    further fields of JobSpec. On several nodes of Slurm every command is a step on one of them. The job ends with 0
    when all of them did; started again by its scheduler, it leaves out those that already had.
    """
    if not commands:
        raise UsageError("no commands to pack", hint="give at least one")
    if at_once is not None and at_once < 1:
        raise UsageError(f"at_once: expected at least 1, found {at_once}")
    lines = "".join(f"{_line(number, [*wrap, *command])}\n" for number, command in enumerate(commands))
    # A job of one task has all of its cores for itself; these share them.
    threads = "" if "OMP_NUM_THREADS" in job.get("env", {}) else _THREADS
    driver = _TEXT.replace("SLOTS", str(at_once or ""), 1).replace("THREADS\n", threads, 1)
    texts = {_DRIVER: driver, _COMMANDS: lines}
    fields = {"name": "pack", **job, "texts": {**job.get("texts", {}), **texts}}
    return JobSpec(argv=("bash", "-c", _START, "pack"), launch="plain", parts=len(commands), **fields)


def _line(number: int, words: Sequence[str]) -> str:
    """Return a command as one line of a shell."""
    if not words or not words[0]:
        raise UsageError(f"command {number}: expected a program and its arguments, found none")
    for word in words:
        if "\0" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageError(f"command {number}: {word!r} cannot be written into a file of commands")
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if "\n" not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"
