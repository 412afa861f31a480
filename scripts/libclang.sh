#!/bin/sh
# Prints the folder of a libclang that the build can use: version 14 or 15. The generator inside rdma-sys does not
# understand what newer ones say. Prints nothing, and fails, where there is none: libclang-cpp, which LLVM brings
# without the rest, is none.
set -eu

for version in 14 15; do
    for dir in "/usr/lib/llvm-$version/lib" "/usr/lib/llvm$version/lib" "/usr/lib64/llvm$version/lib"; do
        for library in "$dir"/libclang.so* "$dir"/libclang-[0-9]*.so*; do
            if [ -e "$library" ]; then
                echo "$dir"
                exit 0
            fi
        done
    done
done
exit 1
