#!/usr/bin/env bash
# Runs cargo test with these arguments, every suite even if one fails. Afterwards prints the ten
# slowest suites, and last what failed and why. The exit code is cargo's.
# usage: test.sh [ARGUMENTS OF CARGO TEST]
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Most of a test's time is waiting: for limits that it sets, and for rails that come back.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
code=0
cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$log" || code=$?
awk '
# Output of a failed test may have lines like those of its suite, so each failure counts once, and
# of the results the last one.
function fails(what) {
    if (!(what in known)) failed[++failures] = what
    known[what] = 1
}
# "     Running suites/soak/main.rs (target/debug/deps/soak-0123)", "   Doc-tests mpib_agent"
/^ +Running .* \(.*\)$/ {
    suite = $NF
    name[suite] = suite
    gsub(/.*\/|-[0-9a-f]+\)$/, "", name[suite])
    name[suite] = name[suite] " (" $(NF - 1) ")"
}
/^ +Doc-tests / { suite = $NF; name[suite] = $NF " (examples of its documentation)" }
# The second list of failures has names alone.
/^failures:$/ { listed = 1; next }
/^---- / { listed = 0 }
# What a failed test says, up to the stack.
/^---- .* stdout ----$/ { test = name[suite] ": " $2; lines = 0 }
/^thread .* panicked at / && !(test in says) { lines = 8 }
/^stack backtrace:/ || /^note: / { lines = 0 }
lines > 0 && test != "" { says[test] = says[test] "      " substr($0, 1, 400) "\n"; lines-- }
listed && /^    [^ ]+$/ { fails(name[suite] ": " $1) }
/^test result: / {
    listed = 0
    passed[suite] = $4
    seconds[suite] = substr($NF, 1, length($NF) - 1)
}
# A suite that a signal has ended has no list.
sub(/^error: test failed, to rerun pass /, "") { fails("cargo test " $0) }
/^error: could not compile / { fails($0) }
END {
    for (suite in passed) sum += passed[suite]
    printf "\n%d tests passed. The slowest suites:\n", sum
    for (n = 1; n <= 10; n++) {
        slowest = ""
        for (suite in seconds)
            if (slowest == "" || seconds[suite] + 0 > seconds[slowest] + 0) slowest = suite
        if (slowest == "") break
        printf "%8.1f s  %s\n", seconds[slowest], name[slowest]
        delete seconds[slowest]
    }
    if (failures) print "Failed:"
    for (n = 1; n <= failures; n++) printf "  %s\n%s", failed[n], says[failed[n]]
}' "$log"
exit "$code"
