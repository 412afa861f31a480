#!/usr/bin/env bash
# Runs the compatibility matrix on the files that "make build" made.
# usage: matrix.sh run|gpu|load [options of "compat-matrix run", "… gpu", "… load"]
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
cargo build --locked --release -p compat-matrix -p softcuda
exec "${CARGO_TARGET_DIR:-target}/release/compat-matrix" "$@"
