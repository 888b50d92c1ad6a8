#!/usr/bin/env bash
# The main job end to end, as a user types it, in a folder of its own.
set -euo pipefail
: "${FAIRMILE:=fairmile}" "${PYTHON:=python3}"
here=$(cd "$(dirname "$0")" && pwd)
# A program writes its files to the folder it starts in.
case $FAIRMILE in */*) FAIRMILE=$(cd "$(dirname "$FAIRMILE")" && pwd)/$(basename "$FAIRMILE") ;; esac
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; esac
# It stays until the next demo, so that a server can show it.
work=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fairmile-demo
rm -rf "$work"
mkdir -p "$work/here" && cd "$work/here"
export FAIRMILE_HOME="$work/home"

step() { printf '\n\033[1m# %s\033[0m\n' "$1"; }
run() { printf '$ fairmile %s\n' "$*"; "$FAIRMILE" "$@"; }

step "Where is it? One search over every catalog."
run search cosmology kind:model
step "What is it?"
run show model/cosmoflow
step "How FAIR is it, and what raises it?"
run show model/cosmoflow --fair
step "Which data does it accept, and why?"
run match --model cosmoflow
step "A description in somebody else's format comes in; its traps become warnings."
run catalog add "$here/ptychography_demo.json"
run search ptychography
step "And goes out in a format whose own validator accepts it."
run catalog export dataset/mnist --to croissant -o "$work/out"
"$PYTHON" "$here/validate_export.py" croissant "$work/out/croissant.json"
run catalog export model/cosmoflow --to rocrate -o "$work/crate"
"$PYTHON" "$here/validate_export.py" rocrate "$work/crate"
step "The bytes: from two mirrors at once. The first one damages a byte; it is noticed, named, and made good."
fetch_and_look() {
  run catalog add "$work/wind-field.jsonld"
  run fetch dataset/wind-field --to "$work/data"
  step "Again: known by its content, so nothing moves."
  run fetch dataset/wind-field --to "$work/data"
}
export -f fetch_and_look run step
export FAIRMILE work
"$PYTHON" "$here/mirrors.py" "$work/wind-field.jsonld" bash -euo pipefail -c fetch_and_look
step "What is in the store, and is every byte still right?"
run store ls
run store verify
step "What does a framework need on a supercomputer? The modules, exactly."
run system modules deep ddp
step "The batch script, right the first time."
run system script --on jureca --software ddp --nodes 2 --time 1:00:00 --account me -- python train.py
step "A job: an array of four, two at once, submitted and waited for; its output and its end are kept."
run job submit --name tides --array 4%2 --wait -- sh -c 'echo "part $FAIRMILE_ARRAY_INDEX"'
run job log tides --task 3
step "One that fails says why, and what to do."
run job submit --name broken --wait -- python3 -c 'import no_such_package' || true
step "A run: measured, recorded, and known when it comes again."
run run --name tide -p rate=0.5 -p epochs=20 -- "$PYTHON" "$here/../docs/examples/tide.py" {rate} {epochs}
run runs show last
step "Another person takes the crate, reads what it would run, reruns it from the record alone, and sees what differs."
run runs export last -o "$work/tide.crate.zip"
run rerun "$work/tide.crate.zip" --dry-run
run rerun "$work/tide.crate.zip" --yes
step "Is a larger rate better, or is it noise?"
run run --name slow --repeat 3 --seed 1 -- "$PYTHON" "$here/../docs/examples/tide.py" 0.2 20 {seed} >/dev/null
run run --name fast --repeat 3 --seed 1 -- "$PYTHON" "$here/../docs/examples/tide.py" 0.6 20 {seed} >/dev/null
run compare slow fast --metric loss
step "All of it in the browser: runs, their comparison, assets, job scripts, predictions."
if [ -t 0 ] && [ -t 1 ]; then
  echo "Ctrl-C ends the server."
  run serve --no-browser || true
else
  printf 'To look at it: FAIRMILE_HOME=%q %q serve\n' "$FAIRMILE_HOME" "$FAIRMILE"
fi
