#!/usr/bin/env bash
# Installs what is missing for the named purposes: Debian packages by apt-get, and libclang by pip
# into the user's cache. Announces each installation before it begins. With SETUP=no it installs
# nothing: it lists what is missing and fails.
# usage: setup.sh [build|test|matrix|vm|instructions|monitoring|browser|package|manifests]...   (each includes build, the default)
set -euo pipefail

purposes=${*:-build}
here=$(cd "$(dirname "$0")" && pwd)
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
. "$here/words.sh"

list() { while read -r line; do say "  $line"; done <<<"$1"; }

wanted_for() { [[ " $purposes " == *" $1 "* ]]; }

# Setup does not install Rust, because users choose how.
check_rust() {
    if ! command -v cargo >/dev/null; then
        say "cargo is missing: install Rust $rust_wanted or newer from https://rustup.rs, or open a shell with cargo on PATH"
        say "(sudo uses root's PATH: run make as yourself; setup calls sudo where it needs root)"
        return 1
    fi
    local have
    have=$(cargo --version | awk '{print $2}')
    if [ "$(printf '%s\n' "$rust_wanted" "${have%%-*}" | sort -V | head -n 1)" != "$rust_wanted" ]; then
        say "cargo is $have, but Rust $rust_wanted or newer is needed: run \"rustup update stable\""
        return 1
    fi
}

has_header() { echo "#include <$1>" | "${CC:-cc}" -E -x c - >/dev/null 2>&1; }

has_libclang() { [ -n "${LIBCLANG_PATH:-}" ] || "$here/libclang.sh" >/dev/null; }

has_pip() { python3 -m pip --version >/dev/null 2>&1; }

needs_pip() { ! has_libclang || wanted_for matrix || wanted_for vm || wanted_for manifests; }

# One line for each missing package: its Debian name and its use.
missing() {
    command -v "${CC:-cc}" >/dev/null || echo "gcc (C compiler)"
    # Without a compiler all header checks fail. Installing a package that is already there does no
    # harm.
    has_header stdlib.h || echo "libc6-dev (C headers)"
    has_header infiniband/verbs.h || echo "libibverbs-dev (libibverbs and its headers)"
    has_header rdma/rdma_cma.h || echo "librdmacm-dev (rdma-sys requires it at build time)"
    command -v pkg-config >/dev/null || echo "pkg-config (finds libraries)"
    has_libclang || echo "libclang (14 or 15: generates the verbs bindings)"
    if needs_pip && ! has_pip; then
        echo "python3-pip (downloads libclang, the NCCL libraries and helm)"
    fi
    if wanted_for test; then
        command -v ibv_rc_pingpong >/dev/null || echo "ibverbs-utils (tests run its programs on softverbs)"
        command -v ib_write_bw >/dev/null || echo "perftest (tests run its programs on softverbs)"
        command -v ip >/dev/null || echo "iproute2 (tests use network namespaces as hosts)"
    fi
    if wanted_for instructions; then
        command -v valgrind >/dev/null || echo "valgrind (counts instructions)"
    fi
    if wanted_for monitoring; then
        command -v promtool >/dev/null || echo "prometheus (tests check metrics, dashboard and alert rules)"
        command -v tmux >/dev/null || echo "tmux (tests run mpib top in it)"
    fi
    if wanted_for browser; then
        command -v chromium >/dev/null || echo "chromium (tests open the agent's page in it)"
    fi
    if wanted_for package; then
        command -v rpmbuild >/dev/null || echo "rpm (builds rpms)"
        command -v dpkg-deb >/dev/null || echo "dpkg (builds debs)"
    fi
    if wanted_for package || wanted_for manifests; then
        python3 -c 'import ensurepip' 2>/dev/null || echo "python3-venv (holds tools that come by pip)"
    fi
    if wanted_for vm; then
        command -v qemu-system-x86_64 >/dev/null || echo "qemu-system-x86 (runs the guests)"
        command -v cpio >/dev/null || echo "cpio (packs the guests' file system)"
        command -v zstd >/dev/null || echo "zstd (packs the guests' file system)"
        command -v xz >/dev/null || echo "xz-utils (unpacks kernel modules)"
        command -v modprobe >/dev/null || echo "kmod (finds kernel modules)"
    fi
}

install_packages() {
    say "installing with apt-get: $(paste -sd ',' <<<"$1" | sed 's/,/, /g'). SETUP=no prevents this."
    local names
    mapfile -t names < <(awk '{print $1}' <<<"$1")
    install_debs "${names[@]}"
}

# Few distributions still package libclang 14 or 15. The Python registry keeps them. This needs no
# root and changes nothing outside the cache folder.
download_libclang() (
    cache=$("$here/libclang.sh" cache)
    say "downloading libclang 15 for the verbs bindings (22 MB, by pip) into $cache. SETUP=no prevents this."
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/download.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
        --require-hashes --requirement "$here/libclang.txt" --dest "$work" >&2; then
        say "the download failed; without network access set LIBCLANG_PATH to a folder with libclang.so of version 14 or 15"
        exit 1
    fi
    python3 -m zipfile -e "$work"/libclang-*.whl "$work/wheel"
    # By rename: the file is complete whenever it exists.
    mv "$(find "$work/wheel" -name libclang.so)" "$cache/libclang.so"
)

lines=$(missing)
if ! check_rust; then
    [ -z "$lines" ] || { say "also missing:" && list "$lines"; }
    exit 1
fi
[ -n "$lines" ] || exit 0
packages=$(grep -v '^libclang ' <<<"$lines" || true)

if [ "${SETUP:-}" = no ]; then
    say "missing, and SETUP=no prevents the installation:"
    list "$lines"
    exit 1
fi
if [ -n "$packages" ] && ! command -v apt-get >/dev/null; then
    say "apt-get is missing: this is neither Debian nor Ubuntu. Install the equivalents of these packages, then run make again:"
    list "$packages"
    exit 1
fi
[ -z "$packages" ] || install_packages "$packages"
has_libclang || download_libclang

lines=$(missing)
if [ -n "$lines" ]; then
    say "still missing after the installation:"
    list "$lines"
    exit 1
fi
