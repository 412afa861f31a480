#!/usr/bin/env bash
# One check by name. usage: check.sh fmt|build|clippy|doc|links|paths|tokens|manifests|unit|names|prose|deny|advisories|loom|miri
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
eval "$(scripts/libclang.sh env)"
deny_version=0.20.2

cargo_deny() {
    cargo_tool cargo-deny "$deny_version"
    cargo deny "$@"
}

tracked() { git ls-files --cached --others --exclude-standard -- "$@"; }

# The anchors of a Markdown file, as GitHub derives them from headings.
anchors() {
    awk '/^ *```/ { fenced = !fenced } !fenced && /^#+ /' "$1" | tr '[:upper:]' '[:lower:]' |
        sed -E 's/^#+ //; s/\[([^]]*)\]\([^)]*\)/\1/g; s/[^[:alnum:] _-]//g; s/ /-/g'
}

# Each relative link in Markdown names a file, and its anchor a heading there.
links() {
    local broken=0 file line link path
    while IFS=: read -r file line link; do
        link=${link#*](} link=${link%)}
        path=${link%%#*}
        case $link in
            *://* | mailto:*) continue ;;
            \#*) path=$file ;;
            *) path=$(dirname "$file")/$path ;;
        esac
        if [ ! -e "$path" ]; then
            say "$file:$line: there is no $path"
            broken=1
        elif [[ $link == *.md#* || $link == \#* ]] && ! anchors "$path" | grep -qxF -- "${link#*#}"; then
            say "$file:$line: no heading of $path has the anchor #${link#*#}"
            broken=1
        fi
    done < <(tracked '*.md' | xargs grep -noE '\]\([^) ]+\)' /dev/null)
    return "$broken"
}

# Each path in backticks in Markdown exists, from the root or from the file's folder, or is one that
# git ignores. It may be a pattern or have parts in capitals, which stand for any name. A line number
# or a command's arguments may follow it.
paths() {
    local missing=0 file line path folders
    folders=$(git ls-files | sed -n 's|/.*||p' | sort -u | sed 's|\.|\\.|' | paste -sd '|')
    while IFS=: read -r file line path; do
        path=${path#\`} path=${path%%:*} path=${path%[,;]}
        path=$(sed -E ':a; s|/[A-Z_]+(/.*)?$|/*\1|; ta' <<<"$path")
        if ! compgen -G "$path" >/dev/null && ! compgen -G "$(dirname "$file")/$path" >/dev/null &&
            ! git check-ignore -q "$path"; then
            say "$file:$line: there is no $path"
            missing=1
        fi
    done < <(tracked '*.md' | xargs grep -noE "\`($folders)/[^\` ]*" /dev/null)
    return "$missing"
}

# No example puts a token on a command line: every user of the host can read it there.
tokens() {
    local found
    found=$(tracked '*.md' '*.sh' '*.yaml' | xargs grep -nEi -- '(\$\((cat|<)|`cat)[^)`]*token|-H[^|]*bearer' | grep -v '^scripts/check.sh:') || return 0
    say "a token on a command line; pass it by a pipe (curl --config -):"
    echo "$found" >&2
    return 1
}

# What the agent's unit leaves open, in tenths, by systemd's own count: 0 is nothing, 100 all.
unit_most=15
unit() {
    local place
    if ! systemd-analyze security --help 2>/dev/null | grep -q -- --offline; then
        say "NOT RUN: no systemd-analyze of systemd 250 or later (package systemd)"
        return 0
    fi
    place=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$place'" EXIT
    sed 's|@PREFIX@|/usr|g' packaging/systemd/mpib-agent.service >"$place/mpib-agent.service"
    systemd-analyze security --no-pager --offline=true --threshold=$unit_most "$place/mpib-agent.service" >"$place/found" || {
        grep -v '^✓' "$place/found" >&2
        say "the agent's unit leaves more open than $unit_most tenths"
        return 1
    }
    tail -n 1 "$place/found"
}

case ${1:-} in
    fmt) cargo fmt --all --check ;;
    # For other compilers than the one that the lints are for.
    build) cargo check --locked --workspace --all-targets ;;
    clippy) cargo clippy --locked --workspace --all-targets -- -D warnings ;;
    doc)
        RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps --document-private-items
        # The page of rules by test is what the tests cite.
        scripts/coverage.sh --check
        links
        paths
        tokens
        ;;
    links) links ;;
    paths) paths ;;
    tokens) tokens ;;
    manifests) scripts/manifests.sh ;;
    unit) unit ;;
    names) tracked '*.rs' | LC_ALL=C xargs awk -f scripts/names.awk ;;
    prose) tracked '*.md' '*.rs' '*.c' '*.h' '*.sh' '*.toml' '*.yml' Makefile .ci/run | LC_ALL=C xargs awk -f scripts/prose.awk ;;
    deny)
        cargo_deny check bans licenses sources
        scripts/notices.sh --check
        ;;
    advisories)
        if ! cargo_deny fetch db; then
            say "the advisory database could not be fetched (it comes from the network): nothing was checked"
            exit 1
        fi
        cargo_deny check --disable-fetch advisories
        ;;
    loom)
        # Every schedule of the statistics page and of the request pool of crate versions. The flag
        # rebuilds everything, hence the separate target folder.
        RUSTFLAGS="--cfg loom" cargo test --locked -p nccl-net-mpib-agent-iface --test agent_iface --target-dir "${CARGO_TARGET_DIR:-target}/loom"
        RUSTFLAGS="--cfg loom" cargo test --locked -p nccl-net-versions --lib --target-dir "${CARGO_TARGET_DIR:-target}/loom"
        ;;
    miri)
        if ! cargo +nightly miri --version >/dev/null 2>&1; then
            say "skipped: no miri (rustup +nightly component add miri)"
            exit 0
        fi
        # The parts without verbs, system calls and C: the border's adapters, the protocol's
        # arithmetic, and what an agent sends. A backtrace of each caught panic would take miri
        # minutes.
        export RUST_BACKTRACE=0 PROPTEST_CASES=${PROPTEST_CASES:-16} MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation}
        # Without the examples, shared libraries, which miri cannot make.
        cargo +nightly miri test --locked -p nccl-net-versions --lib --tests
        cargo +nightly miri test --locked -p mpib-proto --lib
        cargo +nightly miri test --locked -p nccl-net-mpib --lib -- device::mr_cache::
        cargo +nightly miri test --locked -p nccl-net-mpib-agent-iface --lib -- \
            agent::message agent::hints shares:: stats::layout
        ;;
    *)
        echo "usage: $0 fmt|build|clippy|doc|links|paths|tokens|manifests|names|prose|unit|deny|advisories|loom|miri" >&2
        exit 2
        ;;
esac
