#!/usr/bin/env bash
# Runs tests with coverage, and prints the lines in unsafe blocks that none of them has executed, and how
# many there are. A process that a signal ends leaves no counts. No verdict.
# usage: unsafe-lines.sh [ARGUMENTS OF CARGO TEST]   (default: --workspace)
#   LLVM_TOOLS  in the environment: a folder with llvm-profdata and llvm-cov that fit the compiler;
#               default that of rustup's component llvm-tools, which is added if it is missing
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
. scripts/words.sh
eval "$(scripts/libclang.sh env)"
arguments=("$@")
[ $# -gt 0 ] || arguments=(--workspace)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/coverage
tools=${LLVM_TOOLS:-$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin}
if [ ! -x "$tools/llvm-cov" ]; then
    installs "llvm-cov in $tools" "adding rustup's component llvm-tools"
    rustup component add llvm-tools
fi

# The lines of unsafe blocks, "FILE LINE" each. Calls that are unsafe are in blocks everywhere, also in
# unsafe functions: a lint of the workspace denies others.
unsafe_lines() {
    git ls-files 'src/*.rs' '*/src/*.rs' | xargs awk '
        FNR == 1 { depth = 0 }
        {
            text = $0
            sub(/^ *\/\/.*/, "", text)
            if (!depth && match(text, /(^|[^[:alnum:]_])unsafe \{/)) {
                text = substr(text, RSTART + RLENGTH)
                depth = 1
                inside = 1
            } else inside = depth > 0
            n = length(text)
            for (i = 1; i <= n && depth; i++) {
                c = substr(text, i, 1)
                depth += (c == "{") - (c == "}")
            }
            if (inside) print FILENAME, FNR
        }'
}

export RUSTFLAGS="-Cinstrument-coverage ${RUSTFLAGS:-}" CARGO_TARGET_DIR=$target LLVM_PROFILE_FILE=$target/profiles/%p-%m.profraw
rm -rf "$target/profiles"
# Programs that tests start count as well.
mapfile -t objects < <(cargo test --locked --no-run --message-format=json "${arguments[@]}" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort -u)
[ ${#objects[@]} -gt 0 ] || fail "cargo test ${arguments[*]} has no program"
cargo test --locked --no-fail-fast "${arguments[@]}" >"$target/log" 2>&1 ||
    say "tests have failed ($target/log); what they have executed counts"
others=("${objects[@]:1}")
others=("${others[@]/#/--object=}")
find "$target/profiles" -name '*.profraw' >"$target/list"
"$tools/llvm-profdata" merge --sparse --failure-mode=all --input-files="$target/list" --output "$target/merged"
"$tools/llvm-cov" export --format=lcov --skip-functions --instr-profile "$target/merged" "${objects[0]}" \
    "${others[@]}" >"$target/lcov"

# A line counts if the compiler made code of it; it was executed if one of the programs has.
awk -v root="$PWD/" '
    FILENAME ~ /\/lcov$/ {
        if (sub(/^SF:/, "")) { file = $0; if (index(file, root) == 1) file = substr(file, length(root) + 1) }
        else if (sub(/^DA:/, "")) { split($0, of, ","); if (of[2] + 0 > count[file, of[1]]) count[file, of[1]] = of[2] + 0; else count[file, of[1]] += 0 }
        next
    }
    ($1, $2) in count { all++; if (count[$1, $2]) next; never++; print $1 ":" $2 }
    END { printf "%d of %d lines in unsafe blocks were executed\n", all - never, all }
' "$target/lcov" <(unsafe_lines)
