#!/usr/bin/env bash
# Runs a command in a mount namespace whose /sys/class/infiniband and /sys/class/pci_bus are the
# folders class/infiniband and class/pci_bus of FOLDER, and whose /dev/shm is its own. compat-matrix
# fills the folders.
# Exit code 77: this user cannot make such a namespace.
# usage: with-sysfs.sh FOLDER COMMAND...
set -euo pipefail

# Replaces /sys/class by links to its entries, and two of them by links to the folder.
replace() {
    local folder=$1 real=$1/real entry
    mkdir -p "$real" "$folder"/class/{infiniband,pci_bus}
    mount --make-rprivate /
    mount --bind /sys/class "$real"
    mount -t tmpfs none /sys/class
    # The shared memory of other communicators on this machine is out of sight too.
    mount -t tmpfs none /dev/shm
    for entry in "$real"/*; do
        ln -s "$entry" /sys/class/
    done
    for entry in infiniband pci_bus; do
        ln -sfn "$folder/class/$entry" "/sys/class/$entry"
    done
}

if [ "${1:-}" = --in-namespace ]; then
    replace "$2"
    shift 2
    exec "$@"
fi

folder=$(cd "$1" && pwd)
shift
namespace=(unshare --mount)
[ "$(id -u)" = 0 ] || namespace=(unshare --user --map-root-user --mount)
"${namespace[@]}" sh -c 'mount --make-rprivate / && mount -t tmpfs none /sys/class' 2>/dev/null || exit 77
exec "${namespace[@]}" "$0" --in-namespace "$folder" "$@"
