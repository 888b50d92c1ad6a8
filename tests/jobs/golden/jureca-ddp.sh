#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=zam
#SBATCH --partition=dc-gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/jobs/j1/out.log
#SBATCH --error=/scratch/jobs/j1/err.log
# Made by Fairmile 0 for jureca, whose description was compared with its sources on 2026-11-15; newest source: 2023.
# The lines of ddp are old, of 2022; newer: ddp:stages-2025.

export FAIRMILE_JOB_ID="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
export FAIRMILE_NODES="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d " " -)"
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

fairmile_failed() {
    echo "fairmile: this line failed with exit code $1: $fairmile_before" >&2
    fairmile_why=', "reason": "modules"'
    exit 78
}
trap 'fairmile_before=$fairmile_line fairmile_line=$BASH_COMMAND' DEBUG
trap 'fairmile_failed $?' ERR
# MODULES BEGIN jureca ddp
ml --force purge
ml Stages/2022 NVHPC/22.3 ParaStationMPI/5.5.0-1-mt NCCL/2.12.7-1-CUDA-11.5 cuDNN/8.3.1.22-CUDA-11.5
ml Python/3.9.6 libaio/0.3.112 HDF5/1.12.1-serial mpi-settings/CUDA
# MODULES END
trap - ERR DEBUG

cd -- /scratch/jobs/j1 || { fairmile_why=', "reason": "folder"'; exit 78; }
export OMP_NUM_THREADS=8
MASTER_ADDR=${FAIRMILE_NODES%% *}
fairmile_fast=${MASTER_ADDR%%.*}i${MASTER_ADDR#"${MASTER_ADDR%%.*}"}
if getent hosts "$fairmile_fast" >/dev/null; then MASTER_ADDR=$fairmile_fast; fi
export MASTER_ADDR
fairmile_digits=000000000${FAIRMILE_JOB_ID//[^0-9]/}
export MASTER_PORT=$((10000 + (10#${fairmile_digits: -9}) % 20000))
# Each node knows by its number whether it is where they meet; torchrun would guess it by names.

exec 9> >(trap - INT; read -r) # it ends when this script does
fairmile_witness=$! fairmile_before=$!
(
    trap - INT QUIT # which bash has programs in the background ignore
    exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=1 --cpu-bind=none \
        bash -c 'exec "$1" --rdzv-conf=is_host=$((SLURM_PROCID == 0)) "${@:2}"' bash \
        torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id="$FAIRMILE_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
        train.py --epochs 10
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
