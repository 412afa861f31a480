#!/bin/sh
# Finds a libclang that the build can use: version 14 or 15. The bindgen inside rdma-sys does not understand newer ones.
# usage: libclang.sh [dir|args|env|cache]
#   dir    (default) prints the folder for LIBCLANG_PATH; fails where there is none
#   args   prints the value for BINDGEN_EXTRA_CLANG_ARGS; empty where libclang has its own headers
#   env    prints both as shell commands: eval "$(scripts/libclang.sh env)"
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

# The downloaded libclang comes without the headers of a compiler, as stddef.h. Those of the C compiler serve.
args() {
    [ "${LIBCLANG_PATH:-$(dir)}" != "$(cache)" ] || echo "-isystem $("${CC:-cc}" -print-file-name=include)"
}

case ${1:-dir} in
    dir | cache | args) "${1:-dir}" ;;
    env)
        folder=${LIBCLANG_PATH:-$(dir)}
        echo "export LIBCLANG_PATH='$folder' BINDGEN_EXTRA_CLANG_ARGS='$(args)'"
        ;;
    *)
        echo "usage: $0 [dir|args|env|cache]" >&2
        exit 2
        ;;
esac
