#!/usr/bin/env bash
# What the plugin itself costs: two rails of software without a rate limit, so the processor is what
# is measured. Then how much of rails with a rate it reaches.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
eval "$(scripts/libclang.sh env)"
export LD_LIBRARY_PATH=$PWD/build/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SOFTVERBS_DEVICES='sout:addr=192.168.200.1/24;sup:addr=192.168.201.1/24'
export MPIB_HCA_SOUT=sout MPIB_HCA_SUP=sup MPIB_SUP_SHARE=512

run() {
    echo "== $1"
    shift
    build/mpib perf --time "${TIME:-1}" "$@"
}
run "latency: one message in flight" --depth 1 --sizes 8,4K,64K
run "message rate: 32 in flight" --depth 32 --sizes 8,4K,64K
run "groups of 8 receives" --receives 8 --sizes 8,4K,64K
run "throughput, bytes not checked" --no-check --sizes 256K..64M
run "both directions" --no-check --bidirectional --sizes 256K..64M

echo "== rails in proportion: what is reached of the sum of two rails of so many GB/s"
scripts/bench-rails.sh

echo "== statistics: a small message with MPIB_STATS=1 and with 0 (docs/internals/stats-page.md)"
cargo bench --locked -q -p nccl-net-mpib --bench stats 2>/dev/null
if command -v valgrind >/dev/null; then
    # The path of the file that was just run.
    bench=$(cargo bench --locked -p nccl-net-mpib --bench stats --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"name":"stats".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    count() {
        valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect=counted_messages \
            "$bench" --bench --count 2000 "$1" 2>&1 | sed -n 's/.*Collected : *//p'
    }
    with=$(count 1) without=$(count 0)
    awk -v with="$with" -v without="$without" 'BEGIN {
        printf "instructions a message: %.0f counting, %.0f not counting, ratio %.4f\n", with / 2000, without / 2000, with / without
    }'
fi

echo "== profiler: a small message without NCCL's callback and with it (docs/internals/performance.md)"
cargo bench --locked -q -p nccl-net-mpib --bench profiler 2>/dev/null

echo "== adapters: nanoseconds per call through each table, beside a direct call"
cargo bench --locked -q -p nccl-net-versions
