#!/usr/bin/env bash
# Runs suites of the plugin's tests with AddressSanitizer, which also looks for leaks, and with
# ThreadSanitizer. Plugin, softverbs and tests are one program, which is built with the sanitizer.
# docs/internals/testing.md has what each of them sees.
# usage: sanitize.sh [address|thread]...   (default: both)
#   SUITES="data control"   suites of mpib-tests (default: those below)
#   FILTER=text             only tests whose name has the text
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
eval "$(scripts/libclang.sh env)"
# Sanitizers are unstable options of the compiler.
export RUSTC_BOOTSTRAP=1
host=$(rustc -vV | sed -n 's/^host: //p')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize
read -ra suites <<<"${SUITES:-data control faults failover connect memory}"

# Tests that cannot run with a sanitizer: one limits the memory of the process, the other one traces
# its system calls.
skipped=(ten_thousand_strangers_cost_little_and_keep_nobody_out listen_connect_and_accept_wait_for_nothing)
# It loads the plugin from its file, where ThreadSanitizer does not see who holds a lock.
skipped_by_thread=(a_plugin_that_is_unloaded_moves_data)

# ThreadSanitizer must see the standard library, too: the counts of an Arc order accesses.
needs_source() {
    [ -e "$(rustc --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] && return
    local source="the source of Rust's standard library (rustup component add rust-src)"
    command -v rustup >/dev/null || fail "$source is missing, and so is rustup"
    installs "$source" "adding the source of Rust's standard library by rustup"
    rustup component add rust-src
}

run() {
    local kind=$1 reports=$target/$1/reports options=() arguments=() name not=("${skipped[@]}")
    if [ "$kind" = thread ]; then
        needs_source
        options=(-Zbuild-std)
        not+=("${skipped_by_thread[@]}")
    fi
    for name in "${suites[@]}"; do options+=(--test "$name"); done
    for name in "${not[@]}"; do arguments+=(--skip "$name"); done
    # By file: a report of a second process of a test counts, too.
    rm -rf "$reports"
    mkdir -p "$reports"
    say "$kind: ${suites[*]}"
    # report_thread_leaks: the threads of a context that a test does not finalize are not joined. A
    # handler of atexit ends them. die_after_fork: a test starts threads in a forked child.
    local rc=0 log="log_path=$reports/report:log_exe_name=1"
    RUSTFLAGS="-Zsanitizer=$kind" CARGO_TARGET_DIR=$target/$kind \
        ASAN_OPTIONS="$log:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}" \
        TSAN_OPTIONS="$log:second_deadlock_stack=1:report_thread_leaks=0:die_after_fork=0:suppressions=$PWD/scripts/tsan.supp:${TSAN_OPTIONS:-}" \
        cargo test --locked --target "$host" -p mpib-tests "${options[@]}" --no-fail-fast -- \
        "${arguments[@]}" ${FILTER:+"$FILTER"} || rc=$?
    for name in "$reports"/*; do
        [ -e "$name" ] || continue
        rc=1
        cat "$name" >&2
    done
    return "$rc"
}

kinds=("$@")
[ $# -gt 0 ] || kinds=(address thread)
failed=()
for kind in "${kinds[@]}"; do
    case $kind in
        address | thread) run "$kind" || failed+=("$kind") ;;
        *)
            say "there is no sanitizer $kind: expected address or thread"
            exit 2
            ;;
    esac
done
if [ ${#failed[@]} -gt 0 ]; then
    say "failed: ${failed[*]}"
    exit 1
fi
