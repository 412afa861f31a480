#!/usr/bin/env bash
# Makes the kernel and the base of the initramfs for the guests: vmlinuz and base.cpio.zst in the
# cache folder, which it prints. Both come out of the distribution's packages, downloaded and
# unpacked, not installed. Does nothing if both exist; remove the folder to make them anew.
set -euo pipefail

cd "$(dirname "$0")/../.."
. scripts/words.sh
cache=$cache/vm
libs=usr/lib/x86_64-linux-gnu
packages=(busybox-static bash libtinfo6 iproute2 ibverbs-utils libibverbs1 ibverbs-providers libnl-3-200
    libnl-route-3-200 libelf1 libmnl0 libbpf1 libbsd0 libcap2 libxtables12 libdb5.3 zlib1g libmd0)
# Modules to load in the guest, with their dependencies.
modules=(virtio_pci virtio_net 9pnet_virtio 9p crc32_pclmul crc32_generic ib_uverbs rdma_rxe sch_netem)
programs=(usr/bin/bash usr/bin/ip usr/sbin/tc usr/bin/rdma usr/bin/ibv_devinfo usr/bin/ibv_rc_pingpong)

say() { echo "vm: $*" >&2; }

# Inputs of the image. A change makes a new image.
key=$(cat tests/vm/image.sh | sha256sum | cut -c 1-16)
done_file=$cache/made-$key
mkdir -p "$cache/debs"
# One process at a time makes the image. Others wait.
exec 9>"$cache/lock"
flock 9
if [ -f "$done_file" ]; then
    echo "$cache"
    exit 0
fi
rm -rf "$cache"/{made-*,root,tree}
mkdir -p "$cache/root" "$cache/tree"

# The packages that hold the current kernel and all its modules.
kernel_packages() {
    local meta image
    for meta in linux-image-amd64 linux-image-generic; do
        image=$(apt-cache depends --important "$meta" 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ {print $2; exit}')
        [ -z "$image" ] || break
    done
    if [ -z "$image" ]; then
        say "apt-cache knows neither linux-image-amd64 (Debian) nor linux-image-generic (Ubuntu)"
        return 1
    fi
    echo "$image"
    # Ubuntu has separate packages for the modules.
    local version=${image#linux-image-} extra
    for extra in "linux-modules-$version" "linux-modules-extra-$version"; do
        apt-cache show "$extra" >/dev/null 2>&1 && echo "$extra"
    done
    return 0
}

# Downloads the packages that are missing. They go to a separate folder first, because an
# interrupted download must not leave a part of a package in the cache.
download() {
    local kernel package fetch=()
    kernel=$(kernel_packages) || return 1
    for package in $kernel "${packages[@]}"; do
        compgen -G "$cache/debs/${package}_*.deb" >/dev/null || fetch+=("$package")
    done
    [ ${#fetch[@]} -gt 0 ] || return 0
    if [ "${SETUP:-}" = no ]; then
        say "missing, and SETUP=no prevents the download with apt-get: ${fetch[*]}"
        exit 1
    fi
    say "downloading with apt-get: ${fetch[*]}. SETUP=no prevents this."
    rm -rf "$cache/new"
    mkdir "$cache/new"
    # apt downloads as this user, because apt's sandbox user may not write here.
    (cd "$cache/new" && apt-get -o APT::Sandbox::User= download "${fetch[@]}" >&2) || return 1
    mv "$cache"/new/*.deb "$cache/debs/"
    rmdir "$cache/new"
}

if ! download; then
    # The lists of packages are missing, or name packages that no longer exist.
    say "fetching the lists of packages"
    as_root apt-get update >&2
    download
fi
say "unpacking"
for deb in "$cache"/debs/*.deb; do dpkg -x "$deb" "$cache/root"; done
root=$cache/root
# /bin, /sbin and /lib are links into /usr in the image, but packages may have them as folders.
for dir in bin sbin lib; do
    if [ -d "$root/$dir" ] && [ ! -L "$root/$dir" ]; then
        mkdir -p "$root/usr/$dir"
        cp -a "$root/$dir/." "$root/usr/$dir/"
        rm -r "${root:?}/$dir"
    fi
done

vmlinuz=$(compgen -G "$root/boot/vmlinuz-*" | sort -V | tail -n 1)
version=${vmlinuz#*/vmlinuz-}
say "making the image: kernel $version"
install -m 644 "$vmlinuz" "$cache/vmlinuz"

tree=$cache/tree
mkdir -p "$tree"/{proc,sys,dev,tmp,run,root,mnt,lib64,etc/libibverbs.d,usr/bin,usr/sbin,usr/lib/modules,"$libs/libibverbs"}
ln -sfn usr/bin "$tree/bin"
ln -sfn usr/sbin "$tree/sbin"
ln -sfn usr/lib "$tree/lib"
cp "$root/usr/bin/busybox" "$tree/usr/bin/busybox"
echo "driver rxe" >"$tree/etc/libibverbs.d/rxe.driver"

# Copies a file to the same place in the guest, with the libraries that it needs: those of the
# packages, else this machine's.
copy() {
    cp -L "$root/$1" "$tree/$1"
    LD_LIBRARY_PATH=$root/$libs ldd "$root/$1" | awk '$2 == "=>" {print $3 ~ /^\// ? $3 : $1}' | xargs -r cp -n -L -t "$tree/$libs"
}
for program in "${programs[@]}"; do copy "$program"; done
for provider in "$root/$libs"/libibverbs/librxe-*.so; do copy "${provider#"$root/"}"; done
# Libraries that the project's programs need in addition, and the loader.
cp -L /lib64/ld-linux-x86-64.so.2 "$tree/lib64/"
cp -n -L -t "$tree/$libs" "/$libs"/lib{c,m,gcc_s,stdc++,dl,rt,pthread}.so.*

# Unpacks the modules, and numbers them in the order of loading.
depmod -b "$root/usr" "$version"
number=100
for module in "${modules[@]}"; do
    modprobe -d "$root/usr" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
done | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "${file%.ko*}")
    case $file in
        *.xz) xz -dc "$file" ;;
        *.zst) zstd -qdc "$file" ;;
        *) cat "$file" ;;
    esac >"$tree/usr/lib/modules/$number-$name.ko"
    number=$((number + 1))
done

(cd "$tree" && find . -print0 | LC_ALL=C sort -z | cpio --quiet -0 -o -H newc -R 0:0 | zstd -q -T0) >"$cache/base.cpio.zst"
rm -rf "$root" "$tree"
touch "$done_file"
say "made $cache/base.cpio.zst, $(du -h "$cache/base.cpio.zst" | cut -f 1)"
echo "$cache"
