"""No scheduler: processes of the machine itself, each a session of its own that outlives whoever started it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from fairmile.base.commands import Left, Result
from fairmile.base.errors import SystemFailure
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.states import Observed, State

_GRACE_S = 15  # what does not heed TERM for so long gets KILL
# An id is PID-START@HOST: a process number alone may be somebody else's by now. Where there is no /proc, START is -1.
_START_OF = r"""
start_of() {
  start=
  if [ ! -e /proc/self/stat ]; then kill -0 "$1" 2>/dev/null || return 1; start=-1; return 0; fi
  { read -r line < "/proc/$1/stat"; } 2>/dev/null || return 1
  set -- ${line##*) }; case $1 in Z | X) return 1 ;; esac; start=${20}
}
"""
_HOST = "read -r host < /proc/sys/kernel/hostname 2>/dev/null || host=$(uname -n)"
# What a script is told of itself, in bash: its name has no blank, and to cut one off takes long.
_OWN_ID = [
    "  read -r host < /proc/sys/kernel/hostname 2>/dev/null || host=$HOSTNAME",
    "  { read -ra stat < /proc/$$/stat; } 2>/dev/null",
    '  export FAIRMILE_JOB_ID="$$-${stat[21]:--1}@$host"',
]
_SUBMIT = """
cd -- "$2" || exit 1
unset FAIRMILE_JOB_ID FAIRMILE_ARRAY_INDEX
setsid bash "$1" </dev/null >/dev/null 2>&1 &
start_of $! || start=0
echo "$!-$start@$host"
"""
# What a script started may outlive it, where somebody killed the script alone: as long as it runs, so does the job.
_MEMBERS = r"""
members() {
  found=
  for file in /proc/[0-9]*/stat; do
    { read -r line < "$file"; } 2>/dev/null || continue
    set -- "$1" ${line##*) }; [ "$5" = "$1" ] || continue
    case $2 in Z | X) ;; *) file=${file%/stat}; found="$found ${file##*/}" ;; esac
  done
  [ -n "$found" ]
}
"""
# Where the processes of a job stand is a `word`; false where there are none. Status, end and `after` all go by it.
_STATUS_OF = r"""
status_of() {
  word=elsewhere began=${1%@*}; pid=${began%%-*}
  [ "${1##*@}" = "$host" ] || return 0
  if start_of "$pid"; then
    word=running; [ "${began#*-}" = -1 ] || [ "$start" = "${began#*-}" ]
  else
    word=orphaned; members "$pid"
  fi
}
"""
_LOOK = _START_OF + _MEMBERS + _STATUS_OF
_STATUS = """
for id; do
  if status_of "$id"; then echo "$id|$word"; fi
done
"""
_CANCEL = """
for id; do
  status_of "$id" || continue
  case $word in
    elsewhere) echo "$id runs on ${id##*@}" >&2; continue ;;
    running) kill -s TERM -- "-$pid" 2>/dev/null || continue ;;
    orphaned) kill -s TERM $found 2>/dev/null || continue ;;
  esac
  # What does not heed it is ended for good, by a process that waits for it after we are gone.
  setsid sh -c FOR_GOOD sh "$pid" </dev/null >/dev/null 2>&1 &
done
exit 0
"""
_FOR_GOOD = f'{_MEMBERS}sleep {_GRACE_S}; members "$1" && kill -s KILL $found'


class Shell:
    """Processes of the machine itself.

    An array is a script that starts itself once for each task, as many at once as asked for or as there are cores.
    """

    name = "shell"
    unset = ("FAIRMILE_JOB_ID", "FAIRMILE_ARRAY_INDEX")  # what a job that submits another must not hand on
    variables: Mapping[str, str] = {
        "FAIRMILE_JOB_ID": "$FAIRMILE_JOB_ID",
        "FAIRMILE_ARRAY_INDEX": "$FAIRMILE_ARRAY_INDEX",
        "FAIRMILE_NODES": "$HOSTNAME",
    }

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """Return the lines that turn the output to its files, wait for other jobs and start the tasks of an array."""
        # A script that a person starts writes to the terminal.
        log = f"exec >>'{files.stdout}' 2>>'{files.stderr}'" if files.folder else ""
        lines = ['if [ -z "${FAIRMILE_JOB_ID:-}" ]; then', *_OWN_ID]
        if files.after:
            lines += [f"  {line}" for line in _LOOK.strip().splitlines()]
        waits = zip(files.after_folders, files.after_tasks, files.after, strict=True)
        for folder, tasks, (id, condition) in waits:
            lines += [f"  {line}" for line in _wait_for(folder, tasks, id, condition)]
        # Nobody else ends a process at its limit. It waits without a `sleep` that would outlive it.
        limit = [
            "(",
            f"  exec {{idle}}<> <(:); read -rt {request.time_s or 0:g} -u $idle; kill -s TERM $$",
            f"  read -rt {_GRACE_S} -u $idle; read -r children < /proc/$$/task/$$/children",
            "  for child in $children; do",
            '    if [ "$child" != "$BASHPID" ]; then kill -s KILL -- "-$child" || kill -s KILL "$child"; fi',
            "  done",
            ") 2>/dev/null &",
            "fairmile_limit=$!",
        ]
        tail = [*filter(None, [log]), *(limit if request.time_s and files.folder else [])]
        if request.array is None:
            return [*lines, "fi", *tail]
        at_once = request.array.at_once or "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)"
        return [
            *lines,
            f"  slots={at_once}; running=0",
            f"  for ((index = 0; index < {request.array.count}; index++)); do",
            "    if ((running >= slots)); then wait -n; running=$((running - 1)); fi",
            '    FAIRMILE_ARRAY_INDEX=$index bash "$0" & running=$((running + 1))',
            "  done",
            "  wait; exit 0",
            "fi",
            *(line.replace("{index}", "'\"$FAIRMILE_ARRAY_INDEX\"'") for line in tail),
        ]

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """See `Scheduler.submit`."""

        def read(result: Result) -> str:
            if result.exit_code or "@" not in result.stdout:
                raise SystemFailure(f"the job could not be started: {(result.stderr or result.stdout).strip()[:300]}")
            return result.stdout.strip()

        return Question(("/bin/sh", "-c", _HOST + _START_OF + _SUBMIT, "sh", script, files.folder), read)

    def argv(self, script: str) -> tuple[str, ...]:
        """Return the process that a job of this machine is, for who can start it and need not ask a shell."""
        return ("bash", script)

    def id_of(self, left: Left) -> str:
        """Return the id of a job that was started so."""
        return f"{left.pid}-{left.began}@{left.host}"

    def find(self, key: str) -> Question[str | None]:
        """See `Scheduler.find`; a process that started always said so, so there is nothing to look for."""
        return Question(("true",), lambda result: None)

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """See `Scheduler.status`; processes that ended are not listed."""
        script = _HOST + _LOOK + _STATUS
        return Question(("sh", "-c", script, "sh", *ids), lambda result: _read_status(result, ids))

    def history(self, ids: Sequence[str]) -> None:
        """Return None: nobody keeps accounts."""
        return None

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """See `Scheduler.cancel`."""
        script = _HOST + _LOOK + _CANCEL.replace("FOR_GOOD", shlex.quote(_FOR_GOOD))
        return Question(("/bin/sh", "-c", script, "sh", *ids), lambda result: None)


def _read_status(result: Result, ids: Sequence[str]) -> dict[str, Observed]:
    statuses: dict[str, Observed] = {}
    for line in result.stdout.splitlines():
        id, _, word = line.rpartition("|")
        if id in ids and word == "running":
            statuses[id] = Observed(State.RUNNING, word)
        elif id in ids and word == "orphaned":
            statuses[id] = Observed(State.RUNNING, word, sentence="its script was killed, but its processes still run")
        elif id in ids:
            host = id.rpartition("@")[2]
            statuses[id] = Observed(State.UNKNOWN, word, sentence=f"it was started on {host}: look for it there")
    return statuses


def _wait_for(folder: str, tasks: int, id: str, condition: str) -> list[str]:
    """Return lines that wait for the end of another job, and end this one where its condition is not met."""
    there = shlex.quote(folder)
    notes, is_noted = f"{there}/ended", f"[ -s {there}/ended ]"
    if tasks:
        # Of an array that was itself cancelled for another job, no task has a note.
        notes = f"{there}/ended {there}/ended.*"
        is_noted = f"{{ {is_noted} || [ $(cat {there}/ended.* 2>/dev/null | wc -l) -ge {tasks} ]; }}"
    lines = [
        f"while ! {is_noted} && status_of {shlex.quote(id)}; do",
        "  sleep 0.2",
        "done",
    ]
    if condition == "any":
        return lines
    not_met = "" if condition == "failed" else "! "
    return [
        *lines,
        f"ends=$(cat {notes} 2>/dev/null)",
        f'if {not_met}[ "$(grep -cE \'"exit_code": ?0[,}}]\' <<< "$ends")" = {tasks or 1} ]; then',
        '  echo \'{"exit_code": 77, "dependency": true}\' > ended; exit 77',
        "fi",
    ]
