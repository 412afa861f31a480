#!/usr/bin/env bash
# How much of two rails' sum the plugin reaches when the share is their true proportion: pairs of simulated rails, each of so
# many GB/s, several rounds of "mpib perf" for each pair and size, every byte checked. Needs "make build".
# usage: bench-rails.sh [SOUT+SUP...]   ROUNDS=5 TIME=0.5 (seconds for a size in a round) SIZES=1M,16M,64M
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
export LD_LIBRARY_PATH=$PWD/build/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MPIB_HCA_SOUT=sout MPIB_HCA_SUP=sup
rounds=${ROUNDS:-5}

# One line for each size of a run: its two words, and GB/s.
rates() { awk '$2 ~ /^[KMG]?i?B$/ && $3 + 0 > 0 { print $1, $2, $8 }'; }

measure() {
    local sout=$1 sup=$2 sum=$(($1 + $2)) share
    share=$(((1024 * sup + sum / 2) / sum))
    for _ in $(seq "$rounds"); do
        SOFTVERBS_DEVICES="sout:addr=192.168.200.1/24,rate=${sout}GB;sup:addr=192.168.201.1/24,rate=${sup}GB" \
            MPIB_SUP_SHARE=$share build/mpib perf --time "${TIME:-0.5}" --sizes "${SIZES:-1M,16M,64M}" | rates
    done | awk -v rails="$sout + $sup" -v sum="$sum" -v share="$share" '
        { size = $1 " " $2; if (!(size in n)) order[++sizes] = size; all[size, ++n[size]] = $3 }
        END {
            for (s = 1; s <= sizes; s++) {
                size = order[s]; count = n[size]
                for (i = 2; i <= count; i++)
                    for (j = i; j > 1 && all[size, j] < all[size, j - 1]; j--) {
                        held = all[size, j]; all[size, j] = all[size, j - 1]; all[size, j - 1] = held
                    }
                median = all[size, int((count + 1) / 2)]; best = all[size, count]
                printf "%9s %10s %9s %9.3f %8.1f %% %9.3f %8.1f %%\n", rails, share "/1024", size, median, 100 * median / sum, best, 100 * best / sum
            }
        }'
}

printf '%9s %10s %9s %9s %10s %9s %10s   (GB/s; %s rounds)\n' 'rails' 'sup share' 'size' 'median' 'of sum' 'best' 'of sum' "$rounds"
for rails in ${@:-4+2 4+1 3+3 1+4}; do
    measure "${rails%+*}" "${rails#*+}"
done
