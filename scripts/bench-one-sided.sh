#!/usr/bin/env bash
# One-sided traffic: this plugin's RMA table on one simulated rail and on two, beside that of NCCL's
# own InfiniBand code of one release, on one. Writes docs/guide/one-sided-figures.md;
# docs/internals/performance.md defines the figures.
# usage: bench-one-sided.sh [RELEASE] [more options of mpib-bench compare]   TABLE=v16 (its version)
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
release=${1:-2.32.3}
library=$(cargo run --locked -q -p compat-matrix -- fetch "$release")
# NCCL's code connects if a module for GPUDirect RDMA is loaded, also where only memory of the host is
# used. A file system in the place of a folder of /sys has the file by which NCCL finds the module; only
# these processes see it.
# shellcheck disable=SC2016 # the inner shell expands its own variables
exec unshare --user --map-root-user --mount sh -c '
    mount -t tmpfs none /sys/kernel/mm
    mkdir -p /sys/kernel/mm/memory_peers/nv_mem
    echo 1 >/sys/kernel/mm/memory_peers/nv_mem/version
    exec "$@"' sh \
    build/mpib-bench compare --one-sided --markdown docs/guide/one-sided-figures.md \
    --plugin "$library,table=ncclRmaIbProxy,abi=${TABLE:-v16},name=NCCL $release" "${@:2}"
