#!/usr/bin/env bash
# Makes build/book/html of README.md and docs/. Installs mdbook into the user's cache if it is not
# there; with SETUP=no it fails instead. usage: book.sh
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
mdbook_version=0.5.4
tools=$cache/mdbook-$mdbook_version
source=build/book/src

if [ ! -x "$tools/bin/mdbook" ]; then
    installs "mdbook $mdbook_version in $tools" "installing mdbook $mdbook_version with cargo into $tools (once, some minutes)"
    cargo install --locked mdbook --version "$mdbook_version" --no-default-features --features search --root "$tools"
fi

# The pages lie in the book as in the source tree, and their links hold.
rm -rf build/book
mkdir -p "$source"
git ls-files -co --exclude-standard -- '*.md' 'docs/*' | grep -E '^(docs/|[A-Z]+\.md$|compat-matrix/RESULTS\.md$)' |
    while read -r file; do
        [ ! -f "$file" ] || install -D -m 644 "$file" "$source/$file"
    done
sed -E 's|\]\(\.\./|](|; t; s|\]\(|](docs/|' docs/SUMMARY.md >"$source/SUMMARY.md"
# The summary is no page of the book.
sed -i -E 's|\]\(docs/SUMMARY\.md(#[a-z]+)?\)|](toc.html)|' "$source/README.md"
"$tools/bin/mdbook" build .
echo "build/book/html/index.html"
