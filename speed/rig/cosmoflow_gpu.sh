#!/bin/bash
# Parts of cosmoflow_gpu.py on one GPU: bash speed/rig/cosmoflow_gpu.sh FOLDER PART...
# eager (90 s), compiled (50 s), harness (60 s), loader (30 s), ranks (20 s), memory (30 s), learn (120 s)
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
folder=$1
mkdir -p "$folder"
rig() { timeout "$1" python3 speed/rig/cosmoflow_gpu.py "${@:2}" 2>&1; echo "== $2: exit $?, $SECONDS s"; }
launch() {
  mkdir -p "$folder/$1"
  export FAIRMILE_PARAMS='{"strategy": "'$1'", "preset": "mlperf", "size": 32, "epochs": 2, "train_samples": 64,
    "validation_samples": 16}'
  timeout 60 torchrun --standalone --nproc_per_node 1 speed/rig/cosmoflow_gpu.py run "$folder/$1" >"$folder/$1.txt" 2>&1
  echo "== $1: exit $?, $SECONDS s"
  grep -v '^W' "$folder/$1.txt" | head -c 2500
}
[ -d "$folder/128" ] || rig 60 make "$folder" 16 128
for part in "${@:2}"; do
  case $part in
    eager | compiled) rig 90 kernels "$folder" "$part" ;;
    ranks)
      launch ddp &
      launch fsdp &
      wait
      ;;
    harness | learn) [ -d "$folder/64" ] || rig 90 make "$folder" 16 16 64 ;;&
    *) rig 120 "$part" "$folder" ;;
  esac
done
