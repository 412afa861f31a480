#!/usr/bin/env bash
# Boots two guests with two rails between them and runs the checks there.
# usage: run.sh long|short|shell [CHECK…]
# Set VM_LIMIT for another limit than 1800 seconds, which only a run that hangs reaches.
set -euo pipefail

cd "$(dirname "$0")/../.."
mode=${1:?usage: $0 long|short|shell [CHECK...]}
shift
eval "$(scripts/libclang.sh env)"
target=${CARGO_TARGET_DIR:-target}/release
# One cargo call: shared dependencies are built once.
. scripts/commit.sh
cargo build --locked --release -p vm-checks -p compat-matrix
cache=$(tests/vm/image.sh)
logs=build/vm
limit=${VM_LIMIT:-1800}
work=$(mktemp -d)
guests=()
# NCCL's library on this machine, if the checks need it.
library=

say() { echo "vm: $*" >&2; }

# No guest outlives this script. A guest is ended here, by its time limit, or by the kernel if this
# script was killed.
finish() {
    local status=$? guest
    trap - EXIT INT TERM HUP
    # Prevents the shell from reporting each killed child.
    disown -a
    for guest in "${guests[@]}"; do
        while kill -KILL "$guest" 2>/dev/null; do sleep 0.1; done
    done
    mkdir -p "$logs"
    cp "$work"/console-* "$work"/out-* "$logs/" 2>/dev/null || true
    rm -rf "$work"
    [ "$status" = 0 ] || say "what the guests said is in $logs/"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The files of this build that the image lacks, and the commands of each guest.
pack() {
    local tree=$work/tree libs=usr/lib/x86_64-linux-gnu
    mkdir -p "$tree/usr/bin" "$tree/$libs"
    install -m 755 tests/vm/init "$tree/init"
    cp build/libnccl-net-mpib.so "$tree/$libs/"
    # The place where mpib searches for it.
    ln -s x86_64-linux-gnu/libnccl-net-mpib.so "$tree/usr/lib/"
    cp build/mpib "$target/vm-checks" "$tree/usr/bin/"
    if [ -n "$library" ]; then
        cp "$target/compat-matrix" "$tree/usr/bin/"
        cp "$work/facts" "$tree/nccl-facts"
    fi
    echo "$1" >"$tree/job-1"
    echo "$2" >"$tree/job-2"
    (cd "$tree" && find . -print0 | cpio --quiet -0 -o -H newc -R 0:0) | cat - "$cache/base.cpio.zst" >"$work/initramfs"
    rm -r "$tree"
}

# Starts guest $1 for at most $2 seconds with accelerator $3. The arguments that follow define its
# first serial port.
guest() {
    local host=$1 seconds=$2 accel=$3 first=$4 wire options=()
    for wire in 1 2 3; do
        options+=(-netdev "dgram,id=w$wire,local.type=unix,local.path=$work/w$wire-$host,remote.type=unix,remote.path=$work/w$wire-$((3 - host))"
            -device "virtio-net-pci,netdev=w$wire,mac=52:54:00:00:0$wire:0$host,host_mtu=4200,romfile=")
    done
    [ -z "$library" ] || options+=(-virtfs "local,path=${library%/*},mount_tag=nccl,security_model=none,readonly=on")
    # The signal at the parent's death goes down the chain: this script, timeout, QEMU.
    exec setpriv --pdeathsig KILL timeout --foreground -s KILL "$seconds" setpriv --pdeathsig KILL \
        qemu-system-x86_64 -nodefaults -nographic -no-reboot -M q35 -accel "$accel" -cpu max -smp 1 -m 768 \
        -kernel "$cache/vmlinuz" -initrd "$work/initramfs" \
        -append "console=ttyS0 panic=-1 quiet nokaslr mitigations=off no_timer_check net.ifnames=0 host=$host" \
        -serial "$first" -serial "file:$work/out-$host" "${options[@]}"
}

# KVM if a guest boots on it, which the existence of /dev/kvm does not guarantee; else emulation.
# The result is kept until the next boot of this machine.
accelerator() {
    local known=$cache/accelerator boot found=tcg,thread=multi
    boot=$(cat /proc/sys/kernel/random/boot_id)
    if [ "$(head -n 1 "$known" 2>/dev/null)" != "$boot" ]; then
        if [ -w /dev/kvm ]; then
            say "trying KVM"
            pack 'echo booted >/dev/ttyS1' ''
            (guest 1 20 kvm "file:$work/console-kvm") 2>/dev/null || true
        fi
        if grep -qs booted "$work/out-1"; then found=kvm; fi
        printf '%s\n' "$boot" "$found" >"$known"
        rm -f "$work/out-1"
    fi
    tail -n 1 "$known"
}

accel=$(accelerator)
say "two guests with accelerator ${accel%,*}"
if [ "$mode" = shell ]; then
    say "this is host1; host2 is 10.1.0.2 and 10.2.0.2. The plugin is on the library path. \"exit\" ends both"
    pack 'meet; setsid cttyhack bash' 'meet; vm-checks follow'
    (guest 2 86400 "$accel" "file:$work/console-2") &
    guests+=($!)
    (guest 1 86400 "$accel" mon:stdio) <&0 &
    guests+=($!)
    wait $!
    exit 0
fi
options=("$@")
[ "$mode" = long ] || options+=(--short)
mount=:
# NCCL's library is too large for the image: the guests read it from the host's folder.
if [ "$mode" = long ] && { [ $# = 0 ] || [[ " $* " = *" nccl-loader "* ]]; }; then
    if library=$("$target/compat-matrix" facts "$work/facts"); then
        mount='mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 nccl /mnt'
        options+=(--nccl "/mnt/${library##*/}" --nccl-facts /nccl-facts)
    elif [ $? != 3 ]; then
        exit 1
    fi
fi
pack "$mount; meet; vm-checks lead --other 192.168.100.2 --plugin /usr/lib/x86_64-linux-gnu/libnccl-net-mpib.so ${options[*]} >/dev/ttyS1; echo \"exit \$?\" >/dev/ttyS1" \
    "$mount; vm-checks follow"
for host in 1 2; do
    (guest "$host" "$limit" "$accel" "file:$work/console-$host") &
    guests+=($!)
done
until [ -e "$work/out-1" ]; do sleep 0.1; done
# The guests and this pipeline run in the background: bash handles a signal only after a foreground
# command has ended, but a signal ends "wait" at once.
tail --pid="${guests[0]}" -f -n +1 "$work/out-1" | sed -u 's/\r$//; /^exit /d' &
wait $!
status=$(sed -n 's/^exit \([0-9]*\).*/\1/p' "$work/out-1")
if [ -z "$status" ]; then
    say "the checks did not come to their end"
    exit 1
fi
exit "$status"
