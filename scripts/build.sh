#!/usr/bin/env bash
# Builds the plugin, mpib and softverbs, and puts them under build/.
# usage: build.sh [PROFILE]   (release, dev, or dist: the same files in every folder)
#   BUILD_TARGET  in the environment: a target of cargo-zigbuild, such as
#                 aarch64-unknown-linux-gnu.2.17. CC must then be a C compiler for it
#   BUILD_OUT     where the files go, default build
set -euo pipefail

cd "$(dirname "$0")/.."
eval "$(scripts/libclang.sh env)"
profile=${1:-release}
target=${CARGO_TARGET_DIR:-target}
build=${BUILD_OUT:-build}
cargo=(cargo build) rustc=(cargo rustc) options=(--locked --profile "$profile") out=$target
if [ -n "${BUILD_TARGET:-}" ]; then
    cargo=(cargo-zigbuild zigbuild) rustc=(cargo-zigbuild rustc)
    options+=(--target "$BUILD_TARGET")
    out=$target/${BUILD_TARGET%%.*}
fi
. scripts/commit.sh
case $profile in
    dev) out=$out/debug ;;
    *) out=$out/$profile ;;
esac

if [ "$profile" = dist ]; then
    # The last rule that matches a path counts.
    rules=("${CARGO_HOME:-$HOME/.cargo}=/cargo" "$(rustc --print sysroot)=/rust" "$PWD=/mpib"
        "$(realpath -m "$target")=/mpib/target")
    flags=("${rules[@]/#/--remap-path-prefix=}")
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
    export CARGO_ENCODED_RUSTFLAGS
    # For the C of ring.
    export CFLAGS="${CFLAGS:-} ${rules[*]/#/-ffile-prefix-map=}"
fi

# Replaces a file by rename: a process keeps the old file that it has open, and no test sees half a
# file.
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    mv -f "$2.new" "$2"
}

crates/softverbs/build-libibverbs.sh "$build/softverbs" "$profile"
"${cargo[@]}" "${options[@]}" -p mpib
# As a shared object alone: with the Rust library beside it, calls inside of the file would go
# through a table.
"${rustc[@]}" "${options[@]}" -p nccl-net-mpib --lib --crate-type cdylib
put "$out/libnccl_net_mpib.so" "$build/libnccl-net-mpib.so"
put "$out/mpib" "$build/mpib"
# NCCL looks for this name without NCCL_NET_PLUGIN.
ln -sfn libnccl-net-mpib.so "$build/libnccl-net.so"
# RCCL looks for this name with NCCL_NET_PLUGIN=mpib.
ln -sfn libnccl-net-mpib.so "$build/librccl-net-mpib.so"
"${cargo[@]}" "${options[@]}" -p softverbs --bin softverbs-ctl
put "$out/softverbs-ctl" "$build/softverbs/softverbs-ctl"
# For "make bench" and "make check-instructions", in no package.
if [ "$profile" != dist ]; then
    "${cargo[@]}" "${options[@]}" -p mpib-bench
    put "$out/mpib-bench" "$build/mpib-bench"
fi
