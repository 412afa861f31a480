#!/usr/bin/env bash
# Lists the rules of the documentation by the tests that prove them. usage: coverage.sh [--check]
#
# A test cites a rule in a comment directly above its attributes:
#
#     //= reach.md: a host that is silent for MPIB_PEER_TIMEOUT_MS is lost
#     #[test]
#     fn the_limit_of_silence_is_a_setting() {
#
# The citations of all *.rs files of the repository make docs/internals/coverage.md.
#
# The rows of the fault matrix are rules of faults.md. One citation of a row has its number, the
# fault and what happens; tests that prove the same row too cite the number alone:
#
#     //= faults.md: 5: the sender is killed while it sends: the receiver's calls fail
#     //= faults.md: 5
#
# They make docs/internals/faults.md, together with docs/internals/untested-faults.txt: a line
# "NUMBER: FAULT: WHAT HAPPENS: REASON" for each row that no test proves. Every row is in one of the
# two.
#
# With --check the pages are not written: the script fails if they differ.
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
. scripts/words.sh
page=docs/internals/coverage.md
faults=docs/internals/faults.md
untested=docs/internals/untested-faults.txt
rows=94

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
        $1 == "faults.md" { next }
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

# The page of faults. Fails for a row without a sentence, or with two.
render_faults() {
    cat <<'HEAD'
<!-- Written by scripts/coverage.sh; "make check-doc" compares. -->

# Faults and their tests

What happens at each fault that the plugin is designed for, and the tests that prove it. A test
cites its row in a comment above it; [testing.md](testing.md#citing-a-rule) describes the form. Rows
without a test have the reason; they are in [untested-faults.txt](untested-faults.txt).

| | fault | what happens | tests |
|---|---|---|---|
HEAD
    awk -v rows="$rows" '
        # The row of "NUMBER" or "NUMBER: FAULT: WHAT HAPPENS"; fields that follow stay in `rest`.
        function enter(text, line,    number, colon) {
            number = text
            sub(/:.*/, "", number)
            if (number !~ /^[1-9][0-9]*$/ || number + 0 > rows) return bad(line ": no number of a row from 1 to " rows)
            number += 0
            rest = substr(text, length(number) + 1)
            if (rest == "") return number
            sub(/^: /, "", rest)
            if (!(colon = index(rest, ": "))) return bad(line ": no \"FAULT: WHAT HAPPENS\"")
            if (number in fault) return bad(line ": row " number " is described twice")
            fault[number] = substr(rest, 1, colon - 1)
            rest = substr(rest, colon + 2)
            happens[number] = rest
            return number
        }
        function bad(what) { print "faults: " what > "/dev/stderr"; failed = 1; return 0 }
        function cell(text) { gsub(/\|/, "\\|", text); return text }
        FILENAME != ARGV[1] {
            if (/^#/ || /^$/) next
            if (!(number = enter($0, FILENAME ":" FNR))) next
            if (!(colon = index(rest, ": "))) { bad(FILENAME ":" FNR ": no reason"); next }
            happens[number] = substr(rest, 1, colon - 1)
            reason[number] = substr(rest, colon + 2)
            next
        }
        split($0, cited, "\t") && cited[1] == "faults.md" {
            if ((number = enter(cited[2], cited[4] ", " cited[3])))
                tests[number] = tests[number] (tests[number] ? ", " : "") "`" cited[3] "` (" cited[4] ")"
        }
        END {
            for (i = 1; i <= rows; i++) {
                if (!(i in fault)) bad("row " i " has neither a test nor a reason")
                if ((i in tests) && (i in reason)) bad("row " i " has tests and a reason for having none")
                shown = i in reason ? "none: " reason[i] : tests[i]
                printf "| %d | %s | %s | %s |\n", i, cell(fault[i]), cell(happens[i]), cell(shown)
            }
            exit failed
        }
    ' "$1" "$untested"
}

# Every page that is cited exists.
pages_exist() {
    local name missing=0
    while read -r name; do
        if [ "$name" != faults.md ] && [ ! -e "docs/guide/$name" ] && [ ! -e "docs/internals/$name" ]; then
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

# Every row of failover.md's tables of faults has a test, and every test of a row a row.
rows_are_tested() {
    local table missing=0 side row
    table=$(sed -n '/^## What is survived/,/^## How soon/p' docs/guide/failover.md | grep '^| ' | grep -v '^| \(fault\|at connect\) |' | sed 's/^| //; s/ | .*//' | sort -u)
    while IFS=$'\t' read -r side row; do
        if [ -n "$side" ]; then
            say "no test cites \"failover.md: fault: $side\""
        else
            say "a test cites \"failover.md: fault: $row\", which is no row of its tables"
        fi
        missing=1
    done < <(comm -3 <(echo "$table") <(sed -n 's/^failover.md\tfault: \([^\t]*\)\t.*/\1/p' "$1" | sort -u))
    return "$missing"
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
citations >"$dir/citations"
pages_exist "$dir/citations"
if [ -s "$dir/citations" ]; then
    settings_are_tested "$dir/citations"
    rows_are_tested "$dir/citations"
fi
render "$dir/citations" >"$dir/page"
render_faults "$dir/citations" >"$dir/faults"

same() {
    if ! diff -u "$1" "$2" >&2; then
        say "$1 differs from the citations of the tests: run scripts/coverage.sh"
        return 1
    fi
}

case ${1:-} in
    '')
        cp "$dir/page" "$page"
        cp "$dir/faults" "$faults"
        ;;
    --check)
        same "$page" "$dir/page"
        same "$faults" "$dir/faults"
        ;;
    *)
        echo "usage: $0 [--check]" >&2
        exit 2
        ;;
esac
