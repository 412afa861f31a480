#!/usr/bin/env bash
# Makes build/gpu-bundle from what "make build" made: all that scripts/gpu-check.sh needs on a
# machine with a GPU, without Rust and without a network. Then checks that the folder is complete.
# usage: gpu-bundle.sh
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
eval "$(scripts/libclang.sh env)"
bundle=build/gpu-bundle
# MiB. What travels to such a machine is limited.
most=50

. scripts/commit.sh
cargo build --locked --release -p softcuda -p compat-matrix
target=${CARGO_TARGET_DIR:-target}/release
rm -rf "$bundle"
mkdir -p "$bundle/softverbs"
for file in build/{libnccl-net-mpib.so,mpib,mpib-bench,softverbs/libibverbs.so.1,softverbs/softverbs-ctl} \
    "$target"/{compat-matrix,collective-rank,libsoftcuda.so}; do
    to=${file#build/} to=${to#"$target"/}
    strip -o "$bundle/$to" "$file"
done
# NCCL opens this name first.
ln -s libibverbs.so.1 "$bundle/softverbs/libibverbs.so"
cp scripts/{gpu-check.sh,gpu-check.py,gpu-train.py,with-sysfs.sh} "$bundle"
changed=$(git status --porcelain --untracked-files=no)
echo "$(git log -1 --format='%h of %cs')${changed:+, with changes that are not committed}" >"$bundle/COMMIT"

# In another folder, and without the environment of this shell: nothing may come from here.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$bundle/." "$copy"
for file in "$copy"/{*.so,mpib,mpib-bench,compat-matrix,collective-rank,softverbs/*}; do
    needed=$(env -i LD_LIBRARY_PATH="$copy/softverbs" ldd "$file")
    if grep -E "not found|=> $PWD/" <<<"$needed" >&2; then
        fail "${file#"$copy"/} needs a library that is neither in the bundle nor of the system"
    fi
done
for program in mpib mpib-bench compat-matrix softverbs/softverbs-ctl; do
    env -i LD_LIBRARY_PATH="$copy/softverbs" "$copy/$program" --help >/dev/null ||
        fail "$program does not start in another folder"
done
# It has no options; without a job it ends with 2.
status=0
env -i "$copy/collective-rank" 2>/dev/null || status=$?
[ "$status" = 2 ] || fail "collective-rank does not start in another folder (exit code $status)"
for script in gpu-check.py gpu-train.py; do
    env -i "$(command -v python3)" "$copy/$script" --help >/dev/null || fail "$script does not start in another folder"
done
env -i "$(command -v python3)" "$copy/gpu-check.py" "$copy" --commands ||
    fail "a program does not know the options that gpu-check.py gives it"
size=$(du -sm --apparent-size "$bundle" | cut -f 1)
[ "$size" -le "$most" ] || fail "$bundle has $size MiB, expected $most at most"
echo "$bundle: $size MiB; on the machine: $bundle/gpu-check.sh $bundle OUT"
