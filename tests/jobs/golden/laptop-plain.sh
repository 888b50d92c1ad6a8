#!/bin/bash
if [ -z "${FAIRMILE_JOB_ID:-}" ]; then
  read -r host < /proc/sys/kernel/hostname 2>/dev/null || host=$HOSTNAME
  { read -ra stat < /proc/$$/stat; } 2>/dev/null
  export FAIRMILE_JOB_ID="$$-${stat[21]:--1}@$host"
fi
exec >>'out.log' 2>>'err.log'
(
  exec {idle}<> <(:); read -rt 3600 -u $idle; kill -s TERM $$
  read -rt 15 -u $idle; read -r children < /proc/$$/task/$$/children
  for child in $children; do
    if [ "$child" != "$BASHPID" ]; then kill -s KILL -- "-$child" || kill -s KILL "$child"; fi
  done
) 2>/dev/null &
fairmile_limit=$!
# Made by Fairmile 0 for laptop, whose description was never compared with a source.

export FAIRMILE_JOB_ID="$FAIRMILE_JOB_ID"
export FAIRMILE_NODES="$HOSTNAME"
export FAIRMILE_JOB_FOLDER=/scratch/jobs/j1

# The job notes in its folder how it starts and ends, for whoever asks when the scheduler has forgotten it.
fairmile_job=${FAIRMILE_JOB_ID//[\"\\]/}
fairmile_started=$FAIRMILE_JOB_FOLDER/started
fairmile_ended=$FAIRMILE_JOB_FOLDER/ended
fairmile_signal= fairmile_why=
fairmile_end() {
    fairmile_code=${1:-$?}
    if [ "$BASHPID" != $$ ]; then return; fi # a part of this script that a signal ended before it became a program
    trap '' TERM INT HUP USR1 USR2
    if [ -n "${fairmile_limit:-}" ]; then kill "$fairmile_limit" 2>/dev/null; fi
    printf '{"exit_code": %s, "time": %(%s)T, "job": "%s"%s}\n' "$fairmile_code" -1 \
        "$fairmile_job" "${fairmile_signal:+, \"signal\": \"$fairmile_signal\"}$fairmile_why" >"$fairmile_ended"
}
fairmile_attempt=1
if [ -e "$fairmile_started" ]; then
    while read -r _; do fairmile_attempt=$((fairmile_attempt + 1)); done <"$fairmile_started"
    rm -f -- "$fairmile_ended"
fi
printf '{"host": "%s", "time": %(%s)T, "attempt": %s, "job": "%s"}\n' "$HOSTNAME" -1 \
    "$fairmile_attempt" "$fairmile_job" >>"$fairmile_started"

# A signal that reaches this script is passed on to the program.
fairmile_program= fairmile_before=none
fairmile_pass() { eval "$fairmile_told"; } # a text, which costs nothing to read where no signal comes
fairmile_told='
    case $1 in TERM | INT | HUP) fairmile_signal=$1 ;; esac
    fairmile_interrupted=1
    # It may come between the start of the program and the line that notes it.
    if [ "$fairmile_before" != none ] && [ "$!" != "$fairmile_before" ]; then fairmile_program=$!; fi
    if [ -z "$fairmile_program" ]; then
        if [ -n "$fairmile_signal" ]; then exit $((128 + $(kill -l "$1"))); fi
        return
    fi
    kill -s "$1" -- "-$fairmile_program" 2>/dev/null
'
for fairmile_word in TERM INT HUP USR1 USR2; do
    trap "fairmile_pass $fairmile_word" "$fairmile_word"
done
trap fairmile_end EXIT

cd -- /scratch/jobs/j1 || { fairmile_why=', "reason": "folder"'; exit 78; }

fairmile_before=$!
set -m # the program leads a group of its own, so that it gets what is sent to the group of this script but once
(
    exec python train.py --epochs 10
) </dev/null &
set +m
fairmile_program=$!
while :; do
    fairmile_interrupted=
    wait "$fairmile_program"
    fairmile_code=$?
    # A program that stopped before `set +m` stays stopped for bash until it ends, and is not waited for.
    if [ -z "$fairmile_interrupted" ] && kill -0 "$fairmile_program" 2>/dev/null; then
        sleep 0.2
        continue
    fi
    # After a signal the code is that signal's, and a second wait tells the program's. But where both came in the same
    # moment bash may have lost the program's end: it takes it for running, and would wait for it in vain.
    if [ -z "$fairmile_interrupted" ] ||
        { ! kill -0 "$fairmile_program" 2>/dev/null && jobs -rp | grep -qx "$fairmile_program"; }; then
        fairmile_end "$fairmile_code"
        trap - EXIT
        exit "$fairmile_code"
    fi
done
