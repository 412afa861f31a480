#!/usr/bin/env bash
# Measures the part of the rails' total rate that the plugin reaches on simulated rails: several
# rounds of "mpib perf" for each set of rails and each size, with every byte checked. Needs "make
# build". A set gives the rates in GB/s:
#   2+1            SOUT and SUP, with a share in proportion to the rates
#   2+1.5+1+0.5    one device made of all four rails, with their speeds in MPIB_RAIL_SPEED
#   2x4            one rail of 2 GB/s, each message on four queue pairs
# usage: bench-rails.sh [RAILS...]   ROUNDS=5 TIME=0.5 (seconds for a size in a round) SIZES=1M,16M,64M
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
export LD_LIBRARY_PATH=$PWD/build/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
rounds=${ROUNDS:-5}

# One line for each size of a run: its two words, and GB/s.
rates() { awk '$2 ~ /^[KMG]?i?B$/ && $3 + 0 > 0 { print $1, $2, $8 }'; }

# Settings and arguments for a set of rails, as words of "env".
words() {
    local rates list='' speeds='' indices='' i
    IFS=+ read -ra rates <<<"${1%x*}"
    for i in "${!rates[@]}"; do
        list+="r$i:addr=192.168.$((200 + i)).1/24,rate=${rates[i]}GB;"
        speeds+="r$i:$(awk -v gb="${rates[i]}" 'BEGIN { printf "%.0f", gb * 8000 }'),"
        indices+="$i,"
    done
    printf '%s\n' "SOFTVERBS_DEVICES=${list%;}"
    case $1 in
        *x*) printf '%s\n' NCCL_IB_SPLIT_DATA_ON_QPS=1 "NCCL_IB_QPS_PER_CONNECTION=${1#*x}" build/mpib perf ;;
        *+*+*) printf '%s\n' "MPIB_RAIL_SPEED=${speeds%,}" build/mpib perf --merge "${indices%,}" ;;
        *) printf '%s\n' MPIB_HCA_SOUT=r0 MPIB_HCA_SUP=r1 "MPIB_SUP_SHARE=$(awk -v a="${rates[0]}" -v b="${rates[1]}" \
            'BEGIN { printf "%.0f", 1024 * b / (a + b) }')" build/mpib perf ;;
    esac
}

measure() {
    local rails=$1 sum run
    sum=$(awk -v rails="${1%x*}" 'BEGIN { n = split(rails, each, "+"); for (i = 1; i <= n; i++) sum += each[i]; print sum }')
    mapfile -t run < <(words "$rails")
    for _ in $(seq "$rounds"); do
        env "${run[@]}" --time "${TIME:-0.5}" --sizes "${SIZES:-1M,16M,64M}" | rates
    done | awk -v rails="$rails" -v sum="$sum" '
        { size = $1 " " $2; if (!(size in n)) order[++sizes] = size; all[size, ++n[size]] = $3 }
        END {
            for (s = 1; s <= sizes; s++) {
                size = order[s]; count = n[size]
                for (i = 2; i <= count; i++)
                    for (j = i; j > 1 && all[size, j] < all[size, j - 1]; j--) {
                        held = all[size, j]; all[size, j] = all[size, j - 1]; all[size, j - 1] = held
                    }
                median = all[size, int((count + 1) / 2)]; best = all[size, count]
                printf "%12s %9s %9.3f %8.1f %% %9.3f %8.1f %%\n", rails, size, median, 100 * median / sum, best, 100 * best / sum
            }
        }'
}

printf '%12s %9s %9s %10s %9s %10s   (GB/s; %s rounds)\n' 'rails' 'size' 'median' 'of sum' 'best' 'of sum' "$rounds"
# shellcheck disable=SC2068 # the default is several words
for rails in ${@:-2+1 2+0.5 1.5+1.5 0.5+2 2+1.5+1+0.5 2x4}; do
    measure "$rails"
done
