#!/usr/bin/env bash
# This plugin beside NCCL's own InfiniBand transport of one release, on the same simulated rails.
# Writes the figures that docs/internals/performance.md shows.
# usage: bench-peers.sh [RELEASE] [more options of mpib compare, as --plugin FILE]
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
release=${1:-2.32.3}
shift || true
library=$(cargo run --locked -q -p compat-matrix -- fetch "$release")
exec build/mpib compare --plugin "$library,table=ncclNetIb,abi=${ABI:-v12},merge,name=net_ib $release" \
    --markdown docs/guide/performance-figures.md --svg docs/guide/performance.svg --json-file "${JSON:-build/performance.json}" "$@"
