#!/usr/bin/env bash
# Compares what NCCL makes of simulated PCI trees through the plugin and through its own InfiniBand
# transport, on the files that "make build" made. Needs the permission for a mount namespace.
# usage: topologies.sh [options of "compat-matrix topologies"]
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
. scripts/commit.sh
cargo build --locked --release -p softcuda -p compat-matrix
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
scripts/with-sysfs.sh "$work" "${CARGO_TARGET_DIR:-target}/release/compat-matrix" topologies \
    --sysfs "$work" "$@" || status=$?
if [ "$status" = 77 ]; then
    echo "topologies: not run: this user cannot make a mount namespace (run as root, or allow user namespaces)" >&2
fi
exit "$status"
