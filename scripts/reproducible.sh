#!/usr/bin/env bash
# Builds the last commit twice, in two folders, and compares what comes out: what packages hold does
# not depend on the folder or on the time. usage: reproducible.sh
set -euo pipefail

cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A longer path in the second one.
folders=("$work/one" "$work/another/folder")
for folder in "${folders[@]}"; do
    mkdir -p "$folder"
    git archive HEAD | tar -x -C "$folder"
    echo "reproducible: building in $folder"
    (unset CARGO_TARGET_DIR && cd "$folder" && scripts/build.sh dist)
done
rc=0
for file in libnccl-net-mpib.so mpib softverbs/libibverbs.so.1 softverbs/softverbs-ctl; do
    one=${folders[0]}/build/$file
    if cmp "$one" "${folders[1]}/build/$file" && ! grep -aqF -e "$work" -e "${HOME:-/root}/" "$one"; then
        echo "reproducible: $file is the same ($(sha256sum <"$one" | cut -c 1-16)…)"
    else
        echo "reproducible: build/$file differs between two folders, or has a path of this machine" >&2
        rc=1
    fi
done
exit $rc
