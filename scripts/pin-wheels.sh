#!/usr/bin/env bash
# Writes the hashes of the wheels of all releases of the matrix, which pip then requires, from the
# package index to compat-matrix/wheels.txt. Run it after a release was added; what a line of an
# older release had must not change. usage: pin-wheels.sh
set -euo pipefail

cd "$(dirname "$0")/.."
out=compat-matrix/wheels.txt

# The platforms of NCCL's wheels so far, on both architectures that have wheels.
platforms() {
    local tag
    for tag in manylinux_2_28 manylinux_2_27 manylinux_2_18 manylinux_2_17 manylinux2014 manylinux1; do
        echo "--platform ${tag}_$1"
    done
}

# The hash of one wheel, as a pip option; nothing if the index has no such wheel.
hash() {
    # shellcheck disable=SC2046 # one option and its value for each platform
    python3 -m pip install --dry-run --quiet --ignore-installed --no-deps --report - \
        --only-binary=:all: $(platforms "$2") --target "$work" "$1" 2>/dev/null |
        python3 -c 'import json, sys
for item in json.load(sys.stdin)["install"]:
    print("--hash=sha256:" + item["download_info"]["archive_info"]["hashes"]["sha256"])' 2>/dev/null || true
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
versions=$(sed -n 's/^version = "\(.*\)"/\1/p' compat-matrix/matrix.toml)
{
    echo "# The wheels that the matrix may unpack, for pip --require-hashes: scripts/pin-wheels.sh writes them."
    for package in nvidia-nccl-cu12 nvidia-nccl-cu13; do
        for version in $versions; do
            echo "pin-wheels: $package $version" >&2
            hashes=$(hash "$package==$version" x86_64 && hash "$package==$version" aarch64)
            [ -z "$hashes" ] || echo "$package==$version" $hashes
        done
    done
} >"$work/wheels.txt"
mv "$work/wheels.txt" "$out"
echo "pin-wheels: wrote $(grep -c == "$out") wheels to $out" >&2
