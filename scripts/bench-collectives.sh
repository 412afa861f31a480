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

# Replaces /sys/class by links to its entries, with a class infiniband of two adapters.
show_adapters() {
    local tree=$1 real=$1/class entry name port gid
    mkdir "$real"
    mount --make-rprivate /
    mount --bind /sys/class "$real"
    mount -t tmpfs none /sys/class
    for entry in "$real"/*; do
        [ "${entry##*/}" = infiniband ] || ln -s "$entry" /sys/class/
    done
    for name in sout sup; do
        port=/sys/class/infiniband/$name/ports/1
        mkdir -p "$port/gid_attrs/types" "$port/gids"
        # compat-matrix makes the device.
        ln -s "$tree/$name/device" "/sys/class/infiniband/$name/device"
        for gid in 0 2; do echo "IB/RoCE v1" >"$port/gid_attrs/types/$gid"; done
        for gid in 1 3; do echo "RoCE v2" >"$port/gid_attrs/types/$gid"; done
    done
}

if [ "${1:-}" = --in-namespace ]; then
    tree=$2
    shift 2
    show_adapters "$tree"
    exec "$@" --tree "$tree"
fi

eval "$(scripts/libclang.sh env)"
cargo build --locked --release -p softcuda -p compat-matrix
measure=("${CARGO_TARGET_DIR:-target}/release/compat-matrix" collectives "${1:-2.32.3}"
    --figures "$figures" --rounds "${ROUNDS:-5}" --unit "${UNIT:-200}")
namespace=(unshare --mount)
[ "$(id -u)" = 0 ] || namespace=(unshare --user --map-root-user --mount)
if "${namespace[@]}" sh -c 'mount --make-rprivate / && mount -t tmpfs none /sys/class' 2>/dev/null; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "${namespace[@]}" scripts/bench-collectives.sh --in-namespace "$work" "${measure[@]}"
else
    echo "no mount namespace: net_ib is left out" >&2
    "${measure[@]}"
fi
