#!/usr/bin/env bash
# Writes the licences of the software that the plugin, mpib and softverbs contain to
# packaging/notices/, where installations get them from. Needs the network, and installs cargo-about.
# With --check nothing is written: the script fails if a file does not list exactly the crates that
# its program contains. usage: notices.sh [--check]
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
. scripts/words.sh
folder=packaging/notices
version=0.9.3

# The program's package, its manifest, and the name of its notices.
programs=("nccl-net-mpib Cargo.toml libnccl-net-mpib" "mpib crates/cli/Cargo.toml mpib"
    "softverbs crates/softverbs/Cargo.toml softverbs")

# The crates of other projects in a package, "NAME VERSION" each.
contained() {
    local architecture
    for architecture in x86_64 aarch64; do
        cargo tree --locked --edges normal --target "$architecture-unknown-linux-gnu" --package "$1" \
            --prefix none --format '{p}'
    done | sed -n -E '/\(\//!s/^([^ ]+) v([^ ]+).*/\1 \2/p' | sort -u
}

# Drops the crates that a program does not contain, and licences without a crate: cargo-about lists
# those of the whole workspace's features, and this project's own.
only() {
    awk -v crates="$1" '
        BEGIN { split(crates, lines, "\n"); for (i in lines) contained[lines[i]] = 1; used = 1 }
        function flush() { if (used) printf "%s", section; section = ""; used = 0 }
        /^=====/ { flush() }
        /^  [A-Za-z0-9_-]+ [0-9]/ { if (!(($1 " " $2) in contained)) next; used = 1 }
        { section = section $0 "\n" }
        END { flush() }'
}

listed() { sed -n -E 's/^  ([A-Za-z0-9_-]+ [0-9][^ ]*).*/\1/p' "$1" | sort -u; }

check() {
    local rc=0 program package manifest name
    for program in "${programs[@]}"; do
        read -r package manifest name <<<"$program"
        if ! diff <(listed "$folder/$name.txt") <(contained "$package") >&2; then
            say "$folder/$name.txt is not what $package contains (<: listed, >: contained); run scripts/notices.sh"
            rc=1
        fi
    done
    return "$rc"
}

if [ "${1:-}" = --check ]; then
    check
    exit
fi
cargo_tool cargo-about "$version" --features cli
for program in "${programs[@]}"; do
    read -r package manifest name <<<"$program"
    cargo about generate --locked --config "$folder/about.toml" --manifest-path "$manifest" "$folder/notices.hbs" |
        tr -d '\r' | only "$(contained "$package")" >"$folder/$name.txt.new"
    mv -f "$folder/$name.txt.new" "$folder/$name.txt"
    say "wrote $folder/$name.txt"
done
check
