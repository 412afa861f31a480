#!/usr/bin/env bash
# Runs the compatibility matrix on the files that "make build" made.
# usage: matrix.sh run|load|collectives [options of this command of compat-matrix]
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
. scripts/commit.sh
cargo build --locked --release -p compat-matrix -p softcuda
exec "${CARGO_TARGET_DIR:-target}/release/compat-matrix" "$@"
