#!/bin/sh
# Finds a libclang that the build can use: version 14 or 15. The bindgen inside rdma-sys does not
# understand newer ones.
# usage: libclang.sh [dir|env|cache]
#   dir    (default) prints the folder for LIBCLANG_PATH; fails where there is none
#   env    prints shell commands that set what is needed: eval "$(scripts/libclang.sh env)"
#   cache  prints the folder where "setup.sh" puts the libclang that it downloads
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

cache() {
    version=$(sed -n 's/^libclang==\([0-9.]*\).*/\1/p' "$here/libclang.txt")
    echo "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/nccl-net-mpib/libclang-$version"
}

# LLVM's libclang-cpp is another library.
dir() {
    for version in 14 15; do
        for dir in "/usr/lib/llvm-$version/lib" "/usr/lib/llvm$version/lib" "/usr/lib64/llvm$version/lib"; do
            for library in "$dir"/libclang.so* "$dir"/libclang-[0-9]*.so*; do
                if [ -e "$library" ]; then
                    echo "$dir"
                    return
                fi
            done
        done
    done
    [ -e "$(cache)/libclang.so" ] && cache
}

# Prints what bindgen must pass to libclang. The downloaded one has no compiler headers such as
# stddef.h: it gets those of the C compiler.
args() {
    [ "${LIBCLANG_PATH:-$(dir)}" != "$(cache)" ] || echo "-isystem $("${CC:-cc}" -print-file-name=include)"
}

case ${1:-dir} in
    dir | cache) "${1:-dir}" ;;
    env)
        # Cargo rebuilds bindgen when one of them changes, also from unset to empty.
        folder=${LIBCLANG_PATH:-$(dir)}
        args=${BINDGEN_EXTRA_CLANG_ARGS:-$(args)}
        echo "export LIBCLANG_PATH='$folder'"
        [ -z "$args" ] || echo "export BINDGEN_EXTRA_CLANG_ARGS='$args'"
        ;;
    *)
        echo "usage: $0 [dir|env|cache]" >&2
        exit 2
        ;;
esac
