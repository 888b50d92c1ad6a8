#!/bin/bash
#PBS -N train
#PBS -q debug
#PBS -l select=2:ncpus=32:mpiprocs=4:ompthreads=8:ngpus=4
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -l filesystems=home:eagle
# Made by Fairmile 0 for polaris, whose description was compared with its sources on 2026-11-15; newest source: 2026-02-17.

export FAIRMILE_JOB_ID="$PBS_JOBID"
export FAIRMILE_NODES="$(awk '!seen[$1]++ { print $1 }' "$PBS_NODEFILE" | tr '\n' ' ')"
export FAIRMILE_JOB_FOLDER="$PBS_O_WORKDIR"

cd -- "$PBS_O_WORKDIR" || { fairmile_why=', "reason": "folder"'; exit 78; }
export OMP_NUM_THREADS=8

exec mpiexec -n 8 --ppn 4 python train.py --epochs 10
