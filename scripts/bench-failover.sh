#!/usr/bin/env bash
# Faults under load: one of two simulated rails fails and returns. This plugin beside NCCL's own
# InfiniBand transport of one release with its failover and recovery switched on. Then the cost of
# failover without faults: this plugin with MPIB_FAILOVER=1 and 0 on null verbs, in alternating
# rounds. Writes docs/guide/failover-figures.md; docs/internals/performance.md defines the figures.
# usage: bench-failover.sh [RELEASE]   ROUNDS=30 (faults of each kind)
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
release=${1:-2.32.3}
figures=docs/guide/failover-figures.md
library=$(cargo run --locked -q -p compat-matrix -- fetch "$release")
failover=env=NCCL_IB_RESILIENCY_PORT_FAILOVER=1
net_ib="$library,table=ncclNetIb,abi=${ABI:-v12},merge,$failover"
recovery=env=NCCL_IB_RESILIENCY_PORT_RECOVERY=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build/mpib-bench compare --failover --rounds "${ROUNDS:-30}" --time "${TIME:-0.3}" --markdown "$work/faults" \
    --plugin "$net_ib,name=net_ib $release" \
    --plugin "$net_ib,env=NCCL_IB_TIMEOUT=14,name=net_ib with NCCL_IB_TIMEOUT=14" \
    --plugin "$net_ib,$recovery,name=net_ib with recovery"
build/mpib-bench compare --only null --rounds "${COST_ROUNDS:-15}" --markdown "$work/cost" \
    --plugin "$PWD/build/libnccl-net-mpib.so,env=MPIB_FAILOVER=0,name=MPIB_FAILOVER=0"
{
    # Sentences are wrapped; tables are not.
    awk -v wrap="fold -s -w 99 | sed \"s, *$,,\"" '/^[|<]/ { print; fflush(); next } { print | wrap; close(wrap) }' "$work/faults"
    printf '\n## Cost without faults\n'
    sed 1d "$work/cost"
} >"$figures"
