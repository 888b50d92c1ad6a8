#!/bin/bash
#SBATCH --job-name=tides
#SBATCH --partition=dp-esb
#SBATCH --nodes=2
#SBATCH --time=01:00:00

# MODULES BEGIN deep ddp heat
ml Stages/2020 GCC Python
# MODULES END

srun python train.py
