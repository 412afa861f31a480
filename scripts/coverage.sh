#!/usr/bin/env bash
# Lists the rules of the documentation by the tests that prove them. usage: coverage.sh [--check]
#
# A test cites a rule in a comment directly above its attributes:
#
#     //= reach.md: a host that is silent for MPIB_PEER_TIMEOUT_MS is lost
#     #[test]
#     fn the_limit_of_silence_is_a_setting() {
#
# The citations of all *.rs files of the repository make docs/internals/coverage.md. With --check
# the page is not written: the script fails if it differs.
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
page=docs/internals/coverage.md

say() { echo "coverage: $*" >&2; }

# One line for each citation: page, rule, test, file, separated by tabs.
citations() {
    git ls-files -co --exclude-standard '*.rs' | sort | xargs awk '
        FNR == 1 { if (count) lost(); count = 0 }
        /^[ \t]*\/\/= / {
            sub(/^[ \t]*\/\/= /, "")
            cited[++count] = $0
            where = FILENAME ":" FNR
            next
        }
        !count || /^[ \t]*(\/\/|#\[|\)\]|\])/ { next }
        /^[ \t]*(pub(\([a-z]+\))? )?(async )?(unsafe )?fn / {
            name = $0
            sub(/.*fn /, "", name)
            sub(/[^A-Za-z0-9_].*/, "", name)
            for (i = 1; i <= count; i++) {
                colon = index(cited[i], ": ")
                if (!colon) { bad("no \"page.md: rule\" in \"" cited[i] "\"") }
                print substr(cited[i], 1, colon - 1) "\t" substr(cited[i], colon + 2) "\t" name "\t" FILENAME
            }
            count = 0
            next
        }
        { lost() }
        END { if (count && !failed) lost() }
        function lost() { bad("a citation stands above no function") }
        function bad(what) { print where ": " what > "/dev/stderr"; failed = 1; exit 1 }
    ' | sort -u
}

render() {
    cat <<'HEAD'
<!-- Written by scripts/coverage.sh; "make check-doc" compares. -->

# Rules and their tests

Each rule of the guide and of the internals that a test proves, with the tests. A test cites its
rule in a comment above it; [testing.md](testing.md#citing-a-rule) describes the form.
HEAD
    awk -F '\t' '
        $1 != page {
            flush()
            page = $1
            folder = "."
            if ((getline line < ("docs/guide/" page)) >= 0) folder = "../guide"
            printf "\n## %s\n\nSee [%s](%s/%s).\n\n| rule | tests |\n|---|---|\n", page, page, folder, page
        }
        $2 != rule { flush(); rule = $2 }
        { tests = tests (tests ? ", " : "") "`" $3 "` (" $4 ")" }
        END { flush() }
        function flush() {
            if (tests) { shown = rule; gsub(/\|/, "\\|", shown); printf "| %s | %s |\n", shown, tests }
            tests = ""; rule = ""
        }
    ' "$1"
}

# Every page that is cited exists.
pages_exist() {
    local name missing=0
    while read -r name; do
        if [ ! -e "docs/guide/$name" ] && [ ! -e "docs/internals/$name" ]; then
            say "$name is cited, and is neither in docs/guide nor in docs/internals"
            missing=1
        fi
    done < <(cut -f 1 "$1" | sort -u)
    return "$missing"
}

# Every setting has a test: configuration.md's table lists them.
settings_are_tested() {
    local name missing=0
    while read -r name; do
        if ! grep -qxF "configuration.md	$name" <(cut -f 1,2 "$1"); then
            say "no test cites \"configuration.md: $name\""
            missing=1
        fi
    done < <(sed -n '/<!-- settings -->/,/<!-- end of settings -->/s/^| `\([A-Z0-9_]*\)`.*/\1/p' docs/guide/configuration.md)
    return "$missing"
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
citations >"$dir/citations"
pages_exist "$dir/citations"
if [ -s "$dir/citations" ]; then
    settings_are_tested "$dir/citations"
fi
render "$dir/citations" >"$dir/page"

case ${1:-} in
    '') cp "$dir/page" "$page" ;;
    --check)
        if ! diff -u "$page" "$dir/page" >&2; then
            say "$page differs from the citations of the tests: run scripts/coverage.sh"
            exit 1
        fi
        ;;
    *)
        echo "usage: $0 [--check]" >&2
        exit 2
        ;;
esac
