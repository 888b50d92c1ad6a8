#!/bin/bash
#BSUB -J "train[1-10]%2"
#BSUB -q batch
#BSUB -nnodes 1
#BSUB -W 1:00
#BSUB -wa USR1 -wt 2
#BSUB -r
#BSUB -o /scratch/jobs/j1/scheduler.log
#BSUB -e /scratch/jobs/j1/scheduler.log
# Made by Fairmile 0 for summit, whose description was compared with its sources on 2026-11-15; its sources have no dates.

export FAIRMILE_JOB_ID="$LSB_JOBID"
export FAIRMILE_ARRAY_INDEX="$((LSB_JOBINDEX - 1))"
export FAIRMILE_NODES="$(awk '!seen[$1]++ { print $1 }' "$LSB_DJOB_HOSTFILE" | tr '\n' ' ')"
export FAIRMILE_JOB_FOLDER=/scratch/jobs/j1
exec >>/scratch/jobs/j1/out."$FAIRMILE_ARRAY_INDEX".log 2>>/scratch/jobs/j1/err."$FAIRMILE_ARRAY_INDEX".log

# The job notes in its folder how it starts and ends, for whoever asks when the scheduler has forgotten it.
fairmile_job=${FAIRMILE_JOB_ID//[\"\\]/}
fairmile_started=$FAIRMILE_JOB_FOLDER/started.$FAIRMILE_ARRAY_INDEX
fairmile_ended=$FAIRMILE_JOB_FOLDER/ended.$FAIRMILE_ARRAY_INDEX
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
    # The witness tells: where it died too, all processes of the job were signalled, and the program must not get the
    # signal twice.
    sleep 0.3
    if [ -n "$fairmile_witness" ] && ! kill -0 "$fairmile_witness" 2>/dev/null; then
        fairmile_witness=
    elif kill -0 "$fairmile_program" 2>/dev/null; then
        if [ "$(ps -o pgid= -p $$ 2>/dev/null | tr -d " ")" = $$ ]; then
            trap "" "$1"
            kill -s "$1" 0
            trap "fairmile_pass $1" "$1"
            fairmile_witness=
        else
            kill -s "$1" "$fairmile_program" 2>/dev/null
        fi
    fi
'
for fairmile_word in TERM INT HUP USR1 USR2; do
    trap "fairmile_pass $fairmile_word" "$fairmile_word"
done
trap fairmile_end EXIT

cd -- /scratch/jobs/j1 || { fairmile_why=', "reason": "folder"'; exit 78; }
export OMP_NUM_THREADS=42

exec 9> >(trap - INT; read -r) # it ends when this script does
fairmile_witness=$! fairmile_before=$!
(
    trap - INT QUIT # which bash has programs in the background ignore
    exec jsrun -n1 -r1 -a1 -c42 -g6 -bpacked:42 python train.py --epochs 10
) </dev/null 9>&- &
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
