#!/usr/bin/env bash
# The measured split on simulated rails whose ports all report the same speed: the part of the rails'
# sum that is reached, how soon shares follow a rate that changes, and what two equal rails do.
# Then two jobs with a rail in common, and the agent: how soon it follows, its page, its load.
# Writes docs/guide/adaptive-figures.md; docs/internals/performance.md defines the figures.
# With ONLY="agent load", for example, it prints these parts and writes nothing: see
# benches/adaptive/main.rs.
# usage: bench-adaptive.sh   UNIT=100 (MB/s) ROUNDS=5 CHANGES=40 TIME=60 LOAD=20 ONLY=
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
eval "$(scripts/libclang.sh env)"
figures=docs/guide/adaptive-figures.md
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if [ -n "${ONLY:-}" ]; then
    cargo bench --locked -q -p nccl-net-mpib --bench adaptive 2>"$log" || { tail -n 20 "$log" >&2; exit 1; }
    exit 0
fi
if ! cargo bench --locked -q -p nccl-net-mpib --bench adaptive >"$figures.new" 2>"$log"; then
    tail -n 20 "$log" >&2
    rm -f "$figures.new"
    exit 1
fi
mv -f "$figures.new" "$figures"
cat "$figures"
