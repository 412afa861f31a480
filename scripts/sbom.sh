#!/usr/bin/env bash
# Writes what the plugin, mpib and softverbs of the last commit contain to build/sbom/, in CycloneDX's
# form, by cargo-cyclonedx. usage: sbom.sh
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
version=0.5.9
out=$PWD/build/sbom

cargo_tool cargo-cyclonedx "$version"
# cargo-cyclonedx writes beside each Cargo.toml.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$work"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
(cd "$work" && cargo cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --target all)
mkdir -p "$out"
for program in nccl-net-mpib crates/cli/mpib crates/softverbs/softverbs; do
    file=$out/${program##*/}.cdx.json
    # The folder of this run is in the references.
    sed "s|path+file://$work|path+file:///mpib|g" "$work/$program.cdx.json" >"$file"
    say "wrote build/sbom/${file##*/}"
done
