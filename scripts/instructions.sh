#!/usr/bin/env bash
# Counts the plugin's instructions per message and compares them with benches/instructions.toml.
# Needs "make build" and valgrind.
# usage: instructions.sh [--write]   (--write renews the file)
#
# "mpib-bench solo" moves messages between both ends of one connection, in one thread, over
# softverbs. callgrind counts while they move, and only instructions of the plugin's own file:
# libibverbs, libc and the kernel do not matter. The difference between two runs of different length
# leaves out the start. Three workloads move nothing: a test that finds nothing, an isend before its
# receive is posted, and a regMr of registered memory with its deregMr. Their unit is the call.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
. scripts/words.sh
figures=benches/instructions.toml
# Percent by which a count may grow.
limit=2
short=50
long=300
# The functions of "mpib-bench solo" in which callgrind counts, one for each kind of workload.
counted=(mpib_bench::thin::Thin::{group,empty_test,early_isend,register_again})

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$PWD/build/softverbs
export SOFTVERBS_FABRIC=instructions-$$ NCCL_IB_GID_INDEX=3

# Prints the plugin's instructions for GROUPS times eight messages, DEPTH of them in flight. RAILS is
# 1, 2, or 8 for one rail with eight stripes. usage: count GROUPS RAILS SIZE DEPTH [OPTION]
count() {
    local groups=$1 rails=$2 size=$3 depth=$4
    shift 4
    local one='rail0:addr=10.18.0.1/24' two='rail1:addr=10.18.1.1/24' settings
    settings=(SOFTVERBS_DEVICES="$one")
    case $rails in
        2) settings=(SOFTVERBS_DEVICES="$one;$two" MPIB_HCA_SOUT=rail0 MPIB_HCA_SUP=rail1 MPIB_SUP_SHARE=341) ;;
        8) settings+=(NCCL_IB_QPS_PER_CONNECTION=8 NCCL_IB_SPLIT_DATA_ON_QPS=1) ;;
    esac
    env "${settings[@]}" valgrind --quiet --tool=callgrind --callgrind-out-file="$work/calls" --compress-strings=no \
        --collect-atstart=no "${counted[@]/#/--toggle-collect=}" build/mpib-bench solo --plugin "$PWD/build/libnccl-net-mpib.so" \
        --version 12 --size "$size" --depth "$depth" --groups $((groups * 8 / depth)) --output "$work/counts" "$@" >"$work/log" 2>&1 ||
        { say "a run under callgrind failed:"; tail -n 5 "$work/log" >&2; return 1; }
    # A line of figures is the cost of its line in the object named before it. The line after
    # "calls=" is the callee's.
    awk '
        /^ob=/ { own = $0 ~ /\/libnccl-net-mpib\.so$/; next }
        /^calls=/ { getline; next }
        own && /^[-+*0-9]/ { sum += $2 }
        END { printf "%d\n", sum }' "$work/calls"
}

# Prints the instructions per message, or per call. usage: per_message RAILS SIZE DEPTH [OPTION]
per_message() {
    local from to
    from=$(count "$short" "$@") && to=$(count "$long" "$@") || return 1
    if [ "$from" = 0 ]; then
        say "nothing was counted: does \"mpib-bench solo\" still move messages in ${counted[*]}?"
        return 1
    fi
    awk -v from="$from" -v to="$to" -v n=$(((long - short) * 8)) 'BEGIN { printf "%.1f\n", (to - from) / n }'
}

# The workloads: a name, then the arguments of per_message.
workloads='8 B, one rail|1 8 8
8 B, optional receives|1 8 8 --optional
8 B, two rails|2 8 8
64 KiB split over two rails|2 65536 8
8 B, one rail, one in flight|1 8 1
4 KiB whole, two rails|2 4096 8
64 KiB over eight stripes|8 65536 8
a test that finds nothing|1 8 1 --workload empty-test
a test that finds nothing, two rails|2 8 1 --workload empty-test
an isend before its receive|1 8 1 --workload early-isend
regMr and deregMr of registered memory|1 8 1 --workload register-again
regMr and deregMr of registered memory, two rails|2 8 1 --workload register-again'

measured=$work/measured
while IFS='|' read -r name arguments; do
    # shellcheck disable=SC2086 # several words
    each=$(per_message $arguments)
    echo "\"$name\" = $each"
done <<<"$workloads" >"$measured"

rustc=$(rustc -vV | sed -n 's/^release: //p') target=$(rustc -vV | sed -n 's/^host: //p')
if [ "${1:-}" = --write ]; then
    cat >"$figures" - "$measured" <<TEXT
# The plugin's own instructions per message: both ends together, 8 messages in flight unless the
# name states another number, or per call, without libibverbs and libc. "make check-instructions" fails if a count grows by more than $limit %.
# "make check-instructions WRITE=1" renews this file. Counts depend on the compiler. With another
# compiler than the following the check measures but does not compare.
rustc = "$rustc"
target = "$target"

[per_message]
TEXT
    say "wrote $figures"
    cat "$figures"
    exit 0
fi

value() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" "$figures"; }
comparable=1
if [ "$rustc $target" != "$(value rustc) $(value target)" ]; then
    comparable=0
fi

awk -F ' = ' -v limit="$limit" -v comparable="$comparable" '
    !/^"/ { next }
    NR == FNR { old[$1] = $2; next }
    {
        new[$1] = $2
        if (!($1 in old)) { printf "%-32s %8s -> %8.1f  not in the file\n", $1, "-", $2; bad = 1; next }
        change = 100 * ($2 / old[$1] - 1)
        verdict = change > limit ? "GREW" : change < -limit ? "fell: renew the file" : "ok"
        printf "%-32s %8.1f -> %8.1f  %+5.1f %%  %s\n", $1, old[$1], $2, change, comparable ? verdict : "not compared"
        bad += change > limit
    }
    END {
        for (name in old) if (!(name in new)) { printf "%-32s is in the file, but not measured\n", name; bad = 1 }
        exit comparable && bad
    }' "$figures" "$measured" && grew=0 || grew=1
if [ "$comparable" = 0 ]; then
    say "not compared: the counts in $figures are of rustc $(value rustc) for $(value target), this is $rustc for $target"
elif [ "$grew" = 1 ]; then
    say "the plugin takes over $limit % more instructions per message than $figures states. Find the cause, for example with"
    say "callgrind_annotate. If the growth is intended, renew the file with \"make check-instructions WRITE=1\" and state why in the commit."
    exit 1
fi
