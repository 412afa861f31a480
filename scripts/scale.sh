#!/usr/bin/env bash
# What a large job costs a rank and its host, for one rail and for SOUT and SUP with their default
# settings, on 1,024, 16,384 and 131,072 GPUs: measures the costs of one connection on simulated
# rails, and multiplies them. Prints the tables of docs/internals/scale.md, or puts them there.
# usage: scale.sh [--write]     (after "make build")
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
page=docs/internals/scale.md
export LD_LIBRARY_PATH=build/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export NCCL_IB_GID_INDEX=3

# Connections between which the slopes are, and how often each number is measured. The least time of
# each counts: ends that wait for each other poll, and poll longer beside other load.
few=1000 many=3000 rounds=3

# Prints resident KiB at the sender and the receiver, and the processor time of both in ms.
figures() {
    local TIMEFORMAT='%U %S' line
    line=$({ time build/mpib perf --sizes 8 --iterations 10 --no-check --connections "$1" --at-once 64; } 2>&1)
    sed -nE 's/.* each ([0-9.]+) KiB .* here, ([0-9.]+) KiB .*/\1 \2/p' <<<"$line" | tr '\n' ' '
    tail -n 1 <<<"$line" | awk '{ print 1000 * ($1 + $2) }'
}

# Prints "KIND SENDER_KIB RECEIVER_KIB MS_OF_AN_END" for each kind of device.
measured() {
    export SOFTVERBS_DEVICES='rail0:addr=10.18.0.1/24'
    for kind in one two; do
        if [ $kind = two ]; then
            SOFTVERBS_DEVICES+=';rail1:addr=10.18.1.1/24'
            export MPIB_HCA_SOUT=rail0 MPIB_HCA_SUP=rail1 MPIB_SUP_SHARE=512
        fi
        # Both ends of each connection.
        for ((round = 0; round < rounds; round++)); do
            echo "$(figures $few) $(figures $many)"
        done | awk -v kind=$kind -v n=$((many - few)) '
            NR == 1 || $3 < low { low = $3 }
            NR == 1 || $6 < high { high = $6 }
            END { print kind, $4, $5, (high - low) / n / 2 }'
    done
}

tables() {
    awk '
    function thousands(n,   text) {
        text = sprintf("%.0f", n)
        while (text ~ /[0-9][0-9][0-9][0-9]($|,)/) sub(/[0-9][0-9][0-9]($|,)/, ",&", text)
        return text
    }
    function row(name, i, text) {
        text = "| " name " |"
        for (i = 1; i <= columns; i++) text = text " " cell[i] " |"
        print text
    }
    { kinds++; name[kinds] = $1 == "one" ? "one rail" : "SOUT and SUP"
      sender[kinds] = $2; receiver[kinds] = $3; ms[kinds] = $4 }
    END {
        print "| of one end, measured | one rail | SOUT and SUP |"
        print "|---|---:|---:|"
        printf "| resident KiB, sender and receiver | %.0f, %.0f | %.0f, %.0f |\n", sender[1], receiver[1], sender[2], receiver[2]
        printf "| processor time to open and close, ms | %.2f | %.2f |\n\n", ms[1], ms[2]
        split("1024 16384 131072", gpus, " ")
        head = "| GPUs and rails |"; line = "|---|"
        for (size = 1; size <= 3; size++)
            for (kind = 1; kind <= kinds; kind++) {
                columns++
                # Two channels to each peer of the rail on another host, both directions.
                ends[columns] = 4 * (gpus[size] / 8 - 1)
                of[columns] = kind
                head = head " " thousands(gpus[size]) ", " name[kind] " |"; line = line "---:|"
            }
        print head; print line
        for (i = 1; i <= columns; i++) cell[i] = thousands(ends[i])
        row("connections of a rank")
        # A receiver of GPU memory flushes on each rail.
        for (i = 1; i <= columns; i++) cell[i] = thousands(1.5 * ends[i])
        row("queue pairs of a port, with those for flushes")
        for (i = 1; i <= columns; i++) cell[i] = of[i] == 1 ? "" : thousands(4.5 * ends[i])
        row("the same of SUP with `MPIB_SUP_QP=4`")
        for (i = 1; i <= columns; i++) cell[i] = thousands(ends[i])
        row("control connections and descriptors of a rank")
        for (i = 1; i <= columns; i++)
            cell[i] = sprintf("%.2f", 8 * ends[i] * (sender[of[i]] + receiver[of[i]]) / 2 / 1048576)
        row("resident memory of a host, GiB")
        for (i = 1; i <= columns; i++) cell[i] = sprintf("%.1f", ends[i] * ms[of[i]] / 1000)
        row("processor time of a rank to open and close them, s")
        for (i = 1; i <= columns; i++) cell[i] = sprintf("%.1f", 10.5 * ends[i] / 10000)
        row("commands of a port to open them at 100 us each, s")
    }' <<<"$1"
}

all=$(tables "$(measured)")
if [ "${1:-}" != --write ]; then
    echo "$all"
    exit
fi
all=$all awk '
/^<!-- end -->$/ { inside = 0 }
!inside
/^<!-- scale.sh -->$/ { print "\n" ENVIRON["all"] "\n"; inside = 1; found++ }
END { exit found != 1 }' "$page" >"$page.new" || { echo "$page has no place for the tables" >&2; exit 1; }
mv "$page.new" "$page"
