#!/usr/bin/env bash
# Installs what the build, the tests and the demo need and this machine lacks. Does nothing where all is there.
# usage: setup.sh [vm]   (vm: also what the guests of tests/vm need)
set -euo pipefail

rust_wanted=1.88
for=${1:-}
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "setup: $*" >&2; }

list() { while read -r line; do say "  $line"; done <<<"$1"; }

# Rust first: nothing here installs it, as its users choose how.
check_rust() {
    if ! command -v cargo >/dev/null; then
        say "there is no cargo. Install Rust $rust_wanted or newer from https://rustup.rs, or open a shell that has it on PATH"
        say "(with sudo, root's PATH counts: run make as yourself, it asks for root where it must)"
        return 1
    fi
    local have
    have=$(cargo --version | awk '{print $2}')
    if [ "$(printf '%s\n' "$rust_wanted" "${have%%-*}" | sort -V | head -n 1)" != "$rust_wanted" ]; then
        say "cargo is $have, but $rust_wanted or newer is needed: run \"rustup update stable\""
        return 1
    fi
}

has_header() { echo "#include <$1>" | "${CC:-cc}" -E -x c - >/dev/null 2>&1; }

# One line for each thing that is missing: the Debian package, and what it is for.
missing() {
    command -v "${CC:-cc}" >/dev/null || echo "gcc             a C compiler"
    # Without a compiler the headers cannot be looked for; then their packages are asked for too, which does no harm.
    has_header stdlib.h || echo "libc6-dev       C headers"
    has_header infiniband/verbs.h || echo "libibverbs-dev  headers and library of verbs"
    has_header rdma/rdma_cma.h || echo "librdmacm-dev   asked for by the verbs bindings at build time only"
    command -v pkg-config >/dev/null || echo "pkg-config      finds libraries"
    [ -n "${LIBCLANG_PATH:-}" ] || "$here/libclang.sh" >/dev/null || echo "libclang-14-dev libclang 14 or 15 for the verbs bindings"
    command -v ibv_rc_pingpong >/dev/null || echo "ibverbs-utils   programs that the tests run on softverbs"
    command -v ip >/dev/null || echo "iproute2        network namespaces, which are the hosts of some tests"
    command -v ib_write_bw >/dev/null || echo "perftest        programs that the tests run on softverbs"
    [ "$for" = vm ] || return 0
    command -v qemu-system-x86_64 >/dev/null || echo "qemu-system-x86 the guests"
    command -v cpio >/dev/null || echo "cpio            packs their file system"
    command -v zstd >/dev/null || echo "zstd            packs their file system"
    command -v xz >/dev/null || echo "xz-utils        unpacks kernel modules"
    command -v modprobe >/dev/null || echo "kmod            finds kernel modules"
    python3 -m pip --version >/dev/null 2>&1 || echo "python3-pip     fetches NCCL's library"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        say "this needs root, and there is no sudo: run as root: $*"
        return 1
    fi
}

install_debian() {
    local packages=("$@")
    say "installing ${packages[*]}"
    as_root apt-get update
    # Newer releases have no libclang 14, but may have 15.
    for i in "${!packages[@]}"; do
        if [ "${packages[$i]}" = libclang-14-dev ] && ! apt-cache show libclang-14-dev >/dev/null 2>&1; then
            packages[i]=libclang-15-dev
        fi
    done
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
}

check_rust
lines=$(missing)
[ -n "$lines" ] || exit 0

if ! command -v apt-get >/dev/null; then
    say "this is neither Debian nor Ubuntu; install what these Debian packages hold, then run make again:"
    list "$lines"
    exit 1
fi
mapfile -t packages < <(awk '{print $1}' <<<"$lines")
install_debian "${packages[@]}"

lines=$(missing)
if [ -n "$lines" ]; then
    say "still missing after the installation:"
    list "$lines"
    exit 1
fi
