#!/bin/sh
# Runs all checks that need a GPU, from a folder of "make gpu-bundle". Needs NVIDIA's driver, Python 3
# and torch with its libnccl, no Rust and no network. The folder has a copy of this script.
# usage: gpu-check.sh FOLDER [OUT] [OPTION...]   (gpu-check.py --help)
set -eu

folder=${1:?"the folder of make gpu-bundle is missing"}
if [ ! -f "$folder/gpu-check.py" ]; then
    echo "gpu-check: $folder has no gpu-check.py: make it with \"make gpu-bundle\"" >&2
    exit 2
fi
exec python3 "$folder/gpu-check.py" "$@"
