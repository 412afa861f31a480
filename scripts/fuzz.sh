#!/usr/bin/env bash
# Runs the fuzz targets by cargo-fuzz, each for the same time. Inputs that reach new code are kept
# in fuzz/target/corpus. The repository's corpus is only read.
# usage: fuzz.sh SECONDS [TARGET]...   (default: all targets)
#   JOBS=n   targets that run at the same time (default 1)
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
eval "$(scripts/libclang.sh env)"
cargo_fuzz_version=0.13.2
# AddressSanitizer and coverage are unstable options of the compiler.
export RUSTC_BOOTSTRAP=1

# Prints the fuzzer's lines after the target's name: one of progress every ten seconds, all others.
progress() { # TARGET
    awk -v name="$1" '/^#[0-9]+\t/ { if (systime() < next_at) next; next_at = systime() + 10 } { print name ": " $0; fflush() }'
}

# The contexts, threads and caches of the process are no leaks.
options() {
    case $1 in
        calls | fifo) echo -detect_leaks=0 ;;
    esac
}

run() {
    local name=$1 mine=fuzz/target/corpus/$1 log=fuzz/target/$1.log
    mkdir -p "$mine"
    say "$name for $seconds s"
    # shellcheck disable=SC2046 # no word, or one
    if ! cargo fuzz run "$name" "$mine" "fuzz/corpus/$name" -- -max_total_time="$seconds" -timeout=60 \
        -rss_limit_mb=4096 -max_len=4096 -print_final_stats=1 $(options "$name") 2>&1 | tee "$log" | progress "$name"; then
        say "$name fails. The input is in fuzz/artifacts/$name: copy it to fuzz/corpus/$name, where it is a test."
        echo "$name" >>"$failed"
        return
    fi
    say "$name: $(awk '/number_of_executed_units/ { runs = $2 } match($0, /cov: [0-9]+/) { edges = substr($0, RSTART + 5, RLENGTH - 5) } END { print runs " executions, " edges " edges" }' "$log")"
}

seconds=${1:?usage: fuzz.sh SECONDS [TARGET]...}
shift
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(basename -s .rs fuzz/fuzz_targets/*.rs)
if ! command -v "${CXX:-c++}" >/dev/null; then
    say "${CXX:-c++} is missing: libFuzzer needs a C++ compiler (Debian: g++)"
    exit 1
fi
cargo_tool cargo-fuzz "$cargo_fuzz_version"
say "building ${#targets[@]} targets (the first time some minutes)"
cargo fuzz build
failed=fuzz/target/failed
rm -f "$failed"
export seconds failed
export -f say options progress run
printf '%s\n' "${targets[@]}" | xargs -n 1 -P "${JOBS:-1}" bash -c 'set -euo pipefail; run "$1"' "$0"
[ ! -e "$failed" ] || fail "failed: $(xargs <"$failed")"
