#!/bin/bash
#SBATCH --job-name=train
#SBATCH --partition=dc-gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#SBATCH --error=%x-%j.err
# Made by Fairmile 0 for jureca, whose description was compared with its sources on 2026-11-15; newest source: 2023.
# The lines of ddp are old, of 2022; newer: ddp:stages-2025.

export FAIRMILE_JOB_ID="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
export FAIRMILE_NODES="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d " " -)"
export FAIRMILE_JOB_FOLDER="$PWD"

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

export OMP_NUM_THREADS=8
MASTER_ADDR=${FAIRMILE_NODES%% *}
fairmile_fast=${MASTER_ADDR%%.*}i${MASTER_ADDR#"${MASTER_ADDR%%.*}"}
if getent hosts "$fairmile_fast" >/dev/null; then MASTER_ADDR=$fairmile_fast; fi
export MASTER_ADDR
fairmile_digits=000000000${FAIRMILE_JOB_ID//[^0-9]/}
export MASTER_PORT=$((10000 + (10#${fairmile_digits: -9}) % 20000))
# Each node knows by its number whether it is where they meet; torchrun would guess it by names.

exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=1 --cpu-bind=none \
        bash -c 'exec "$1" --rdzv-conf=is_host=$((SLURM_PROCID == 0)) "${@:2}"' bash \
        torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id="$FAIRMILE_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
        train.py --epochs 10
