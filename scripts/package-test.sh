#!/usr/bin/env bash
# Installs, upgrades, uses and removes the packages of build/package in bare roots, as a user would, and
# checks that nothing is left. Needs root for debootstrap. usage: package-test.sh [CASE]...
#   CASE   bookworm-deb, bookworm-rpm, bookworm-tarball (Debian 12), bionic-deb (Ubuntu 18.04),
#          arm64-tarball (Debian 12 for aarch64, by qemu-user-static), wheel (a virtual environment),
#          make (make install); default: all
#   NCCL   in the environment: release of the libnccl that "mpib abi" reads
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
packages=$PWD/build/package
nccl=${NCCL:-2.27.7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Installs a program that is missing, by Debian's package.
need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null && return
    installs "$1" "installing $2 with apt-get"
    install_debs "$2" >&2
}

# Makes a root once, without libibverbs, which packages recommend and do not require.
root() { # SUITE ARCHITECTURE
    local root=$cache/bare-roots/$1-$2 options=(--variant=minbase --arch="$2")
    if [ ! -e "$root.complete" ] || [ ! -d "$root" ]; then
        need debootstrap debootstrap
        say "making $root with debootstrap"
        rm -rf "$root"
        mkdir -p "$root"
        # The unpacked packages are enough for another architecture: nothing is configured there.
        [ "$2" = "$(dpkg --print-architecture)" ] || options+=(--foreign)
        case $1 in
            bookworm) options+=(--include=rpm) ;;
            *) options+=(--components=main,universe) ;;
        esac
        # Debian has no keyring of Ubuntu. The root is for this test only.
        case $1 in
            bookworm) ;;
            *) [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || options+=(--no-check-gpg) ;;
        esac
        debootstrap "${options[@]}" "$1" "$root" >"$root.log" 2>&1 || fail "debootstrap failed: $(tail -n 3 "$root.log")"
        if [ "$2" != "$(dpkg --print-architecture)" ]; then
            for deb in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done
            # Scripts of packages would make them.
            mkdir -p "$root/opt" "$root/usr/local/lib"
            : >"$root/etc/ld.so.cache"
        fi
        rm -rf "$root"/var/cache/apt/archives/*.deb "$root/debootstrap"
        touch "$root.complete"
    fi
    echo "$root"
}

# A real libnccl.so.2, from the cache of scripts/matrix.sh or by pip.
libnccl() { # x86_64|aarch64
    local library=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mpib/nccl/$nccl/libnccl.so.2 folder=$cache/nccl-$nccl-$1
    if [ "$1" = "$(uname -m)" ] && [ -f "$library" ]; then
        echo "$library"
        return
    fi
    if [ ! -f "$folder/nvidia/nccl/lib/libnccl.so.2" ]; then
        say "downloading NCCL $nccl for $1 by pip"
        mkdir -p "$work/wheels"
        grep "^nvidia-nccl-cu12==$nccl " compat-matrix/wheels.txt >"$work/nccl.txt" || fail "compat-matrix/wheels.txt has no $nccl"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
            --platform "manylinux_2_18_$1" --platform "manylinux2014_$1" --platform "manylinux_2_17_$1" \
            --dest "$work/wheels" --requirement "$work/nccl.txt" >&2
        python3 -m zipfile -e "$work"/wheels/nvidia_nccl_cu12-*.whl "$folder"
        rm -r "$work/wheels"
    fi
    echo "$folder/nvidia/nccl/lib/libnccl.so.2"
}

# Runs package-steps.sh in a copy of a root that is thrown away. For another processor the kernel
# starts programs by qemu: a user namespace has a separate list of such interpreters.
in_root() { # SUITE ARCHITECTURE(Debian) ARCHITECTURE(kernel) INSTALL REMOVE [quick]
    local lower library namespaces=(--mount --pid --fork --ipc) user=""
    lower=$(root "$1" "$2")
    library=$(libnccl "$3")
    if [ "$3" != "$(uname -m)" ]; then
        need "qemu-$3-static" qemu-user-static
        namespaces+=(--user --map-root-user)
        user=,userxattr
    fi
    mkdir -p "$work/top" "$work/root"
    unshare "${namespaces[@]}" bash -euc '
        work=$1 lower=$2 packages=$3 library=$4 steps=$5 user=$6 machine=$7
        shift 7
        # A file system that overlayfs can write to. Not every /tmp is one.
        mount -t tmpfs -o size=1G tmpfs "$work/top"
        mkdir "$work/top/upper" "$work/top/work"
        mount -t overlay overlay "$work/root" \
            -o "lowerdir=$lower,upperdir=$work/top/upper,workdir=$work/top/work$user"
        mkdir "$work/root/packages"
        cp "$packages"/*.deb "$packages"/*.rpm "$packages"/*.tar.gz "$steps" "$work/root/packages"
        [ ! -d "$work/older" ] || cp "$work"/older/* "$work/root/packages"
        touch "$work/root/packages/libnccl.so.2"
        mount --bind "$library" "$work/root/packages/libnccl.so.2"
        mount -t proc proc "$work/root/proc"
        mount --rbind /dev "$work/root/dev"
        if [ "$machine" != "$(uname -m)" ]; then
            mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
            magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
            mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
            echo ":qemu:M::$magic:$mask:/usr/bin/qemu-$machine-static:F" >/proc/sys/fs/binfmt_misc/register
        fi
        exec env -i HOME=/root OLDER="${OLDER:-}" SOFTVERBS="${SOFTVERBS:-}" PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$work/root" /bin/sh /packages/package-steps.sh "$@"
    ' bash "$work" "$lower" "$packages" "$library" "$PWD/scripts/package-steps.sh" "$user" "$3" "${@:4}"
}

# A package by its pattern; fails unless there is exactly one.
package() {
    local found=("$packages"/$1)
    [ ${#found[@]} = 1 ] && [ -f "${found[0]}" ] || fail "$packages has no $1, or several: run \"make package\""
    echo "${found[0]##*/}"
}

# The same package as an older release: 0.0.1.
older_deb() { # FILE
    rm -rf "$work"/older*
    mkdir "$work/older"
    dpkg-deb -R "$packages/$1" "$work/older-deb"
    sed -i 's/^Version: .*/Version: 0.0.1-1/' "$work/older-deb/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$work/older-deb" "$work/older/older.deb" >/dev/null
}

older_rpm() { # FILE
    need rpmbuild rpm
    need cpio cpio
    rm -rf "$work"/older*
    mkdir "$work/older" "$work/older-rpm"
    rpm2cpio "$packages/$1" | (cd "$work/older-rpm" && cpio -idm --quiet)
    SOURCE_DATE_EPOCH=1000000000 scripts/pack.sh rpm nccl-net-mpib 0.0.1 x86_64 "$work/older-rpm" "$work/older"
}

deb() { # SUITE
    local file softverbs
    file=$(package 'nccl-net-mpib_*_amd64.deb')
    softverbs=$(package 'mpib-softverbs_*_amd64.deb')
    older_deb "$file"
    OLDER="dpkg -i /packages/older.deb" SOFTVERBS="dpkg -i /packages/$softverbs" \
        in_root "$1" amd64 x86_64 "dpkg -i /packages/$file" "dpkg --remove mpib-softverbs nccl-net-mpib && dpkg --purge nccl-net-mpib"
}

# Debian has the libraries under names that rpm does not know, hence --nodeps.
with_rpm() {
    local rpm="rpm --dbpath /tmp/rpmdb" file softverbs
    file=$(package 'nccl-net-mpib-*.x86_64.rpm')
    softverbs=$(package 'mpib-softverbs-*.x86_64.rpm')
    older_rpm "$file"
    OLDER="$rpm -U --nodeps --oldpackage /packages/nccl-net-mpib-0.0.1-1.x86_64.rpm" SOFTVERBS="$rpm -U --nodeps /packages/$softverbs" \
        in_root bookworm amd64 x86_64 "$rpm -U --nodeps --replacepkgs /packages/$file" "$rpm -e mpib-softverbs nccl-net-mpib"
}

tarball() { # ARCHITECTURE(Debian) ARCHITECTURE(kernel) [quick]
    local file
    file=$(package "nccl-net-mpib-*-linux-$2.tar.gz")
    in_root bookworm "$1" "$2" "tar -C /opt -xzf /packages/$file" "rm -r /opt/mpib" "${@:3}"
}

wheel() {
    local file library before
    file=$(package '*_x86_64.whl')
    library=$(libnccl x86_64)
    python3 -m venv "$work/venv"
    before=$(cd "$work/venv" && find . ! -name '*.pyc' | sort)
    (
        export PATH=$work/venv/bin:$PATH
        set -x
        pip install --quiet --disable-pip-version-check --no-index "$packages/$file"
        mpib --version
        mpib path
        [ "$(python -m nccl_net_mpib)" = "$(mpib path)" ]
        mpib abi "$library"
        mpib demo --factor 512 --time 0.1
        mpib enable
        mpib disable --all
        pip uninstall --quiet --disable-pip-version-check -y nccl-net-mpib
    )
    diff <(echo "$before") <(cd "$work/venv" && find . ! -name '*.pyc' | sort) || fail "the wheel left files"
    echo "nothing is left"
}

# What "make build" made, under another root.
make_install() {
    local root=$work/installed
    mkdir -p "$root/usr/local/lib"
    ln -s libnccl-net-ofi.so "$root/usr/local/lib/libnccl-net.so"
    (cd "$root" && find . | sort) >"$work/before"
    scripts/install.sh /usr/local "$root"
    [ "$(readlink "$root/usr/local/lib/libnccl-net.so")" = libnccl-net-ofi.so ] || fail "another plugin's link has changed"
    # An upgrade to another library folder.
    LIBDIR=/usr/local/lib64 ENABLE=1 scripts/install.sh /usr/local "$root"
    [ "$("$root/usr/local/bin/mpib" path)" = "$root/usr/local/lib64/libnccl-net-mpib.so" ] || fail "mpib path is wrong"
    [ ! -e "$root/usr/local/lib/libnccl-net-mpib.so" ] || fail "the older installation's plugin is still there"
    [ "$(readlink "$root/usr/local/lib64/libnccl-net.so")" = libnccl-net-mpib.so ] || fail "ENABLE=1 made no link"
    scripts/uninstall.sh /usr/local "$root"
    diff "$work/before" <(cd "$root" && find . | sort) || fail "make uninstall left files"
    echo "nothing is left"
}

cases=("$@")
[ $# -gt 0 ] || cases=(bookworm-deb bookworm-rpm bookworm-tarball bionic-deb arm64-tarball wheel make)
for case in "${cases[@]}"; do
    echo
    echo "=== $case"
    begin=$SECONDS
    case $case in
        bookworm-rpm) with_rpm ;;
        bookworm-tarball) tarball amd64 x86_64 ;;
        arm64-tarball) tarball arm64 aarch64 quick ;;
        wheel) wheel ;;
        make) make_install ;;
        *-deb) deb "${case%-deb}" ;;
        *) fail "there is no case $case" ;;
    esac
    echo "=== $case: good, $((SECONDS - begin)) s"
done
