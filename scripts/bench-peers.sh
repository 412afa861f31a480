#!/usr/bin/env bash
# This plugin beside NCCL's own InfiniBand transport of one release, on the same simulated rails.
# Writes the figures that docs/internals/performance.md shows.
# usage: bench-peers.sh [RELEASE] [more options of mpib-bench compare]
#
# Other plugins are added with --plugin FILE: each has its column, and goals are against all of
# them. FILE,abi=vN chooses an older table, FILE,merge lets makeVDevice merge the rails (for plugins
# that make a device of each), FILE,name=TEXT sets the name, and FILE,table=SYMBOL,abi=vN takes a
# table that the file does not export. For example, beside two releases of NCCL:
#   scripts/bench-peers.sh 2.32.3 --plugin libnccl.so.2.27.7,table=ncclNetIb,abi=v10,merge,name=2.27
# --only null compares the plugins' own part of small messages, in less than a minute.
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
release=${1:-2.32.3}
shift || true
library=$(cargo run --locked -q -p compat-matrix -- fetch "$release")
exec build/mpib-bench compare --goals --plugin "$library,table=ncclNetIb,abi=${ABI:-v12},merge,name=net_ib $release" \
    --markdown docs/guide/performance-figures.md --svg docs/guide/performance.svg --json-file "${JSON:-build/performance.json}" "$@"
