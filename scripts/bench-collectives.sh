#!/usr/bin/env bash
# Collectives of two ranks of one NCCL release without a GPU: this plugin, NCCL's own InfiniBand
# transport and its sockets. Writes docs/guide/collectives-figures.md;
# docs/internals/performance.md defines the figures.
#
# The InfiniBand transport looks for adapters in /sys/class/infiniband. In a mount namespace that
# folder has the simulated ones. Without the permission for such a namespace the transport is left
# out.
# usage: bench-collectives.sh [RELEASE]   ROUNDS=5 UNIT=200 (MB/s of the slower rail)
set -euo pipefail

cd "$(dirname "$0")/.."
figures=docs/guide/collectives-figures.md

eval "$(scripts/libclang.sh env)"
. scripts/commit.sh
cargo build --locked --release -p softcuda -p compat-matrix
measure=("${CARGO_TARGET_DIR:-target}/release/compat-matrix" collectives "${1:-2.32.3}"
    --figures "$figures" --rounds "${ROUNDS:-5}" --unit "${UNIT:-200}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
scripts/with-sysfs.sh "$work" "${measure[@]}" --tree "$work" || status=$?
if [ "$status" = 77 ]; then
    echo "no mount namespace: net_ib is left out" >&2
    status=0
    "${measure[@]}" || status=$?
fi
exit "$status"
