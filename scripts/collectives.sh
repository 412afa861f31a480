#!/usr/bin/env bash
# Runs whole communicators of NCCL releases without a GPU, on the files that "make build" made.
# usage: collectives.sh [options of "compat-matrix collectives"]
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
. scripts/commit.sh
cargo build --locked --release -p softcuda -p compat-matrix
exec "${CARGO_TARGET_DIR:-target}/release/compat-matrix" collectives "$@"
