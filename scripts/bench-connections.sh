#!/usr/bin/env bash
# What connections cost on simulated rails, for 256, 1,000 and 4,000 in one process: rate, memory,
# and the time to open and close one. Prints the table of docs/internals/performance.md.
# usage: bench-connections.sh [PLUGIN [more options of mpib perf, as --table ncclNetIb --abi v12]]
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
plugin=${1:-build/libnccl-net-mpib.so}
shift || true
export LD_LIBRARY_PATH=build/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export NCCL_IB_GID_INDEX=3

# One run: how many connections, how many at a time, further options.
figures() {
    local count=$1 at_once=$2
    shift 2
    build/mpib perf --plugin "$plugin" --sizes 8 --iterations 10 --no-check \
        --connections "$count" --at-once "$at_once" "$@" | grep ' connections, '
}

# "N connections, M at a time: R per second, T ms to open ...; resident for each A KiB (B private)
# here, C KiB (D private) there"
field() { sed -E "s/.* at a time: ([0-9]+) per second, ([0-9.]+) ms .* each ([0-9.]+) KiB .* here, ([0-9.]+) KiB .*/\\$1/"; }

echo "| rails | connections | a second, one after the other | a second, 64 at a time | open and close one, ms | KiB at the sender, receiver |"
echo "|---|---:|---:|---:|---:|---:|"
for rails in one two; do
    export SOFTVERBS_DEVICES='rail0:addr=10.18.0.1/24'
    if [ $rails = two ]; then
        SOFTVERBS_DEVICES+=';rail1:addr=10.18.1.1/24'
        export MPIB_HCA_SOUT=rail0 MPIB_HCA_SUP=rail1 MPIB_SUP_SHARE=512
    fi
    for count in 256 1000 4000; do
        single=$(figures "$count" 1 "$@")
        many=$(figures "$count" 64 "$@")
        echo "| $rails | $count | $(field 1 <<<"$single") | $(field 1 <<<"$many") | $(field 2 <<<"$single")" \
            "| $(field 3 <<<"$single"), $(field 4 <<<"$single") |"
    done
done
