#!/usr/bin/env bash
# Repeats suites of the plugin's tests beside busy loops on all processors, and prints how often each
# test has failed. Fails if one has. usage: flakes.sh [RUNS] [SUITE]...
#   RUNS   default 10
#   SUITE  default control, faults, failover and soak
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
eval "$(scripts/libclang.sh env)"
runs=${1:-10} suites=("${@:2}")
[ ${#suites[@]} -gt 0 ] || suites=(control faults failover soak)
chosen=(--workspace "${suites[@]/#/--test=}")
# What does not build is no flake.
cargo test --locked --no-run "${chosen[@]}"

work=$(mktemp -d)
loops=()
end() {
    kill "${loops[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
for ((n = $(nproc); n > 0; n--)); do
    (while :; do :; done) &
    loops+=($!)
done
for ((run = 1; run <= runs; run++)); do
    begin=$SECONDS
    if scripts/test.sh "${chosen[@]}" >"$work/log" 2>&1; then
        say "run $run of $runs: good, $((SECONDS - begin)) s"
        continue
    fi
    # The list at the end of test.sh: a test in each line with two blanks, and why below it.
    sed -n '/^Failed:$/,$p' "$work/log" | tail -n +2 >"$work/failed"
    [ -s "$work/failed" ] || { tail -n 20 "$work/log"; echo "  a run without a list of tests"; } >"$work/failed"
    say "run $run of $runs: failed, $((SECONDS - begin)) s"
    cat "$work/failed"
    sed -n 's/^  \([^ ].*\)/\1/p' "$work/failed" >"$work/names"
    # Behind the tests the list has their suites.
    grep '): ' "$work/names" >>"$work/all" || cat "$work/names" >>"$work/all"
done
[ -e "$work/all" ] || exit 0
echo "Failures of $runs runs:"
sort "$work/all" | uniq -c | sort -rn
exit 1
