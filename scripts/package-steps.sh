#!/bin/sh
# What a user does with a package, in a bare root; a part of package-test.sh. Each step is printed
# with its output and its time. usage: package-steps.sh INSTALL REMOVE [quick]
#   INSTALL, REMOVE   commands
#   quick             fewer messages, for an emulated processor
#   OLDER, SOFTVERBS  in the environment, for packages of distributions: commands that install an older
#                     release, in place of a newer one, too, and softverbs
# /packages holds the packages and libnccl.so.2.
set -eu
export LC_ALL=C
install=$1 remove=$2 speed=${3:-}
softverbs=/opt/mpib/lib/mpib/softverbs
perf="mpib perf --sizes 1M --time 0.3"
demo="mpib demo --factor 512 --time 0.1"
if [ "$speed" = quick ]; then
    perf="mpib perf --sizes 64K --iterations 20"
fi

fail() {
    echo "package-test: $*" >&2
    exit 1
}

# Runs a line of shell. The third word is the exit codes that are right, default 0.
step() { # TITLE COMMAND [CODES]
    printf '\n-- %s\n$ %s\n' "$1" "$2"
    begin=$(date +%s%3N)
    code=0
    sh -c "$2" || code=$?
    echo "[exit code $code, $(($(date +%s%3N) - begin)) ms]"
    case " ${3:-0} " in
        *" $code "*) ;;
        *) fail "$1: exit code $code; expected ${3:-0}" ;;
    esac
}

# Files, links and folders of the root; what package managers and the linker's cache note about
# themselves has the same names before and after. dpkg removes an empty /opt.
list() {
    find / -xdev \( -path /proc -o -path /dev -o -path /sys -o -path /tmp -o -path /packages -o -path /var/lib/rpm \
        -o -path /var/log -o -path '/var/lib/dpkg/*-old' -o -path /var/cache/ldconfig \) -prune -o -printf '%p %y %l\n' | grep -vx '/opt d ' | sort
}

echo "== $(. /etc/os-release && echo "$PRETTY_NAME"), $(ldd --version | head -n 1), $(uname -m)"
list >/tmp/before
export PATH="/opt/mpib/bin:$PATH"
# A folder of others, where every linker looks.
default=$(dirname "$(ldconfig -p | sed -n 's/.*libc\.so\.6 .*=> //p' | head -n 1)")
if [ -n "${OLDER:-}" ]; then
    links="readlink $default/libnccl-net.so && readlink /opt/mpib/lib/libnccl-net.so"
    step "install an older release" "$OLDER"
    step "make it the default of the host" "mpib enable && mpib enable $default"
    step "upgrade: the links stay" "$install && $links"
    step "downgrade: the links stay" "$OLDER && $links"
    step "upgrade once more" "$install && $links"
    step "remove all links" "mpib disable --all && ! readlink $default/libnccl-net.so"
else
    step "install" "$install"
fi
if [ -n "${SOFTVERBS:-}" ]; then
    step "NCCL finds the plugin by its name without LD_LIBRARY_PATH" "NCCL_NET_PLUGIN=mpib mpib doctor -v --nccl /packages/libnccl.so.2 | grep 'NCCL would open it as'"
    step "demo without softverbs names its package" "if mpib demo 2>/tmp/why; then exit 1; fi; grep 'the package mpib-softverbs' /tmp/why"
    step "install softverbs" "$SOFTVERBS"
fi
step "its version and its file" "mpib --version && mpib path"
step "doctor without libibverbs: unusable, with the reason" "code=0
    mpib doctor --nccl /packages/libnccl.so.2 >/tmp/said || code=\$?
    cat /tmp/said
    grep -q 'libibverbs cannot be used.*MPIB-229' /tmp/said || exit 1
    exit \$code" 2
step "doctor on simulated rails" "LD_LIBRARY_PATH=$softverbs:/opt/mpib/lib NCCL_NET_PLUGIN=mpib mpib doctor --nccl /packages/libnccl.so.2" "0 1"
step "which table a real NCCL takes" "mpib abi /packages/libnccl.so.2"
[ "$speed" = quick ] || step "demo" "$demo"
step "perf" "LD_LIBRARY_PATH=$softverbs $perf"
[ ! -e /opt/mpib/lib/libnccl-net.so ] || fail "libnccl-net.so exists before \"mpib enable\""
step "enable" "mpib enable && mpib enable && mpib enable --rccl && ls -l /opt/mpib/lib"
# The linker's cache has files by their soname and no links. A default folder is searched.
if [ "$speed" != quick ]; then
    step "the linker finds the name that NCCL opens in a default folder" "mpib enable $default &&
        mpib doctor | grep 'NCCL_NET_PLUGIN not set' | grep -v 'would not find'; mpib disable $default"
fi
ln -s libnccl-net-ofi.so /usr/local/lib/libnccl-net.so
step "another plugin is never replaced" "mpib enable /usr/local/lib" 2
[ "$(readlink /usr/local/lib/libnccl-net.so)" = libnccl-net-ofi.so ] || fail "another plugin's link has changed"
step "nor removed" "mpib disable /usr/local/lib && readlink /usr/local/lib/libnccl-net.so"
rm /usr/local/lib/libnccl-net.so
if [ "$speed" != quick ]; then
    step "a job that runs keeps its files during an upgrade" "
        LD_LIBRARY_PATH=$softverbs mpib perf --sizes 1M --time 3 & job=\$!
        sleep 1; $install && kill -0 \$job && wait \$job"
fi
# What makes the links leaves them to the removal.
[ -z "${OLDER:-}" ] || step "enable in a folder of others once more" "mpib enable $default"
step "remove" "$remove"
list >/tmp/after
diff /tmp/before /tmp/after || fail "the root is not as it was: <: before, >: after"
if ldconfig -p | grep mpib; then fail "the linker's cache still has the plugin"; fi
echo "nothing is left"
