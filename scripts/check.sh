#!/usr/bin/env bash
# One check by name. usage: check.sh fmt|clippy|abi|doc|deny|advisories|loom|miri
set -euo pipefail

cd "$(dirname "$0")/.."
deny_version=0.20.2

say() { echo "check: $*" >&2; }

cargo_deny() {
    if ! cargo deny --version >/dev/null 2>&1; then
        say "installing cargo-deny $deny_version (once, some minutes)"
        cargo install --locked cargo-deny --version "$deny_version"
    fi
    cargo deny "$@"
}

case ${1:-} in
    fmt) cargo fmt --all --check ;;
    clippy) cargo clippy --workspace --all-targets -- -D warnings ;;
    abi)
        # The types of the C interface against the headers, through the C compiler and libclang.
        cargo test -p nccl-net-abi
        ;;
    doc)
        RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --document-private-items
        # The manual of settings has each of them, and every variable of NCCL's InfiniBand transport.
        cargo test -q -p nccl-net-mpib --lib config::
        # The manuals name tests: each must be there.
        missing=0
        for name in $(grep -ohE '`[a-z0-9]+(_[a-z0-9]+){2,}`' docs/*.md | tr -d '`' | sort -u); do
            if ! git grep -qwF "$name" -- '*.rs' '*.sh' '*.toml' '*.h'; then
                say "no test or name $name is in the sources; it stands in $(grep -lF "\`$name\`" docs/*.md | tr '\n' ' ')"
                missing=1
            fi
        done
        exit "$missing"
        ;;
    deny) cargo_deny check bans licenses sources ;;
    advisories)
        if ! cargo_deny fetch db; then
            say "the advisory database could not be fetched (it comes from the network): nothing was checked"
            exit 1
        fi
        cargo_deny check --disable-fetch advisories
        ;;
    loom)
        # Every schedule of the hint file's writer and readers; with a target folder of its own, since the flag rebuilds everything.
        RUSTFLAGS="--cfg loom" cargo test -p nccl-net-mpib-agent-iface --test loom --target-dir "${CARGO_TARGET_DIR:-target}/loom"
        # The request pool of crate versions, likewise.
        RUSTFLAGS="--cfg loom" cargo test -p nccl-net-versions --lib --target-dir "${CARGO_TARGET_DIR:-target}/loom"
        ;;
    miri)
        if ! cargo +nightly miri --version >/dev/null 2>&1; then
            say "skipped: no miri (rustup +nightly component add miri)"
            exit 0
        fi
        # The parts without verbs, sockets and C: the border's adapters, and the protocol's arithmetic.
        # A backtrace of each caught panic would take miri minutes.
        export RUST_BACKTRACE=0 PROPTEST_CASES=${PROPTEST_CASES:-16} MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation}
        cargo +nightly miri test -p nccl-net-versions
        cargo +nightly miri test -p nccl-net-mpib --lib proto::
        cargo +nightly miri test -p nccl-net-mpib --lib device::cache_tests::
        ;;
    *)
        echo "usage: $0 fmt|clippy|abi|doc|deny|advisories|loom|miri" >&2
        exit 2
        ;;
esac
