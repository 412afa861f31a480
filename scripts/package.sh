#!/usr/bin/env bash
# Builds the packages into build/package: for each architecture a tarball, two debs, two rpms, a Python
# wheel and the debug files, all from the same files, which need glibc 2.17 or newer; and the Helm chart.
# usage: package.sh [x86_64|aarch64]...   (default: both)
#   EPOCH     in the environment: the time of all files in packages, default that of the last commit
#   HOMEPAGE  in the environment: the address of the repository, default that in Cargo.toml. Without
#             one packages name none
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
. scripts/words.sh
out=$PWD/build/package
version=$(workspace_field version)
# Each kind of package has its own form of a version between two releases, one that comes before
# the release that follows.
system_version=$(sed 's/-dev$/~dev/' <<<"$version") wheel_version=$(sed 's/-dev$/.dev0/' <<<"$version")
glibc=2.17
name=nccl-net-mpib
SOURCE_DATE_EPOCH=${EPOCH:-$(git log -1 --format=%ct)}
HOMEPAGE=${HOMEPAGE:-$(workspace_field repository)}
export SOURCE_DATE_EPOCH HOMEPAGE
architectures=("$@")
[ $# -gt 0 ] || architectures=(x86_64 aarch64)
files=(libnccl-net-mpib.so mpib softverbs/libibverbs.so.1 softverbs/softverbs-ctl)

# Zig as the linker, cargo-zigbuild and wheel, in a virtual environment of Python. Zig has the
# symbols of every release of glibc.
tools() {
    local hash folder
    hash=$(sha256sum <packaging/requirements.txt | cut -c 1-12)
    folder=$cache/package-$hash
    if [ ! -e "$folder/complete" ]; then
        installs "cargo-zigbuild in $folder" "installing Zig and cargo-zigbuild by pip into $folder (400 MB)"
        python3 -m venv --clear "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            --require-hashes --requirement packaging/requirements.txt
        touch "$folder/complete"
    fi
    export PATH=$folder/bin:$PATH
}

# Builds for one architecture into $work/build.
build() {
    local target=$1-unknown-linux-gnu
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
        installs "Rust's target $target" "adding Rust's target $target by rustup"
        rustup target add "$target"
    fi
    mkdir -p "$work/link"
    # As a C compiler with a name for scripts.
    printf '#!/bin/sh\nexec cargo-zigbuild zig cc -- -g -fno-sanitize=all -target %s-linux-gnu.%s "$@"\n' \
        "$1" "$glibc" >"$work/link/cc"
    chmod +x "$work/link/cc"
    # rdma-sys makes types of this machine's headers. Nothing is linked to their libraries.
    local library
    for library in libibverbs librdmacm; do
        printf 'Name: %s\nDescription: headers\nVersion: %s\n' "$library" "$(pkg-config --modversion "$library")" \
            >"$work/link/$library.pc"
    done
    PKG_CONFIG_LIBDIR=$work/link PKG_CONFIG_ALLOW_CROSS=1 CC=$work/link/cc BUILD_TARGET=$target.$glibc \
        BUILD_OUT=$work/build scripts/build.sh dist
}

# Fails if a file needs a newer glibc than promised or another library, which the wheel's tag does not
# allow, or names a folder of this machine. Debug information may name that of Zig, which assembles its
# unwinder there.
check() {
    local file highest others
    for file in "${files[@]}"; do
        highest=$(readelf --wide --dyn-syms "$work/build/$file" | grep ' UND ' |
            grep -o "@GLIBC_[0-9.]*" | sort -uV | tail -n 1)
        highest=${highest#@}
        if [ "$(printf '%s\n' "$highest" "GLIBC_$glibc" | sort -V | tail -n 1)" != "GLIBC_$glibc" ]; then
            readelf --wide --dyn-syms "$work/build/$file" | grep "@$highest" >&2
            fail "$1: $file needs $highest; expected GLIBC_$glibc at most"
        fi
        others=$(readelf --wide --dynamic "$work/build/$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
            grep -vE '^(lib(c|dl|m|pthread|rt)|ld-linux-.*)\.so\.[0-9]+$' || true)
        [ -z "$others" ] || fail "$1: $file needs $others; expected the C library alone"
        echo "package: $1: $file needs $highest and no other library"
        if grep -aqF -e "$PWD/" -e "${HOME:-/root}/" "$work/build/$file"; then
            fail "$1: $file names a folder of this machine: $(strings "$work/build/$file" |
                grep -m 1 -F -e "$PWD/" -e "${HOME:-/root}/")"
        fi
    done
}

# Moves debug information into separate files, in .debug beside each file, where gdb looks.
strip() {
    local sysroot objcopy file debug
    sysroot=$(rustc --print sysroot)
    # Rust's: it knows all architectures. Its library is in Rust's folder.
    objcopy=(env LD_LIBRARY_PATH="$sysroot/lib"
        "$sysroot/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-objcopy")
    for file in libnccl-net-mpib.so:lib mpib:bin softverbs/libibverbs.so.1:lib/mpib/softverbs \
        softverbs/softverbs-ctl:lib/mpib/softverbs; do
        debug=$work/debug/mpib/${file#*:}/.debug/$(basename "${file%%:*}").debug
        mkdir -p "$(dirname "$debug")"
        "${objcopy[@]}" --only-keep-debug "$work/build/${file%%:*}" "$debug"
        "${objcopy[@]}" --strip-all --add-gnu-debuglink="$debug" "$work/build/${file%%:*}"
    done
    find "$work/debug" -name '*.debug' -exec chmod -x {} +
}

# One time for all files, and no owner of this machine.
archive() { # FILE FOLDER MEMBER
    tar --create --gzip --file "$1" --directory "$2" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" "$3"
}

# From the tree of the tarball to those of a distribution's packages: what systems look for outside of
# /opt/mpib goes there, and softverbs into a package for itself.
system_trees() {
    local root=$work/root opt=$work/root/opt/mpib library
    mkdir -p "$root"/usr/{bin,lib64,lib/systemd,share/man} "$work/softverbs/opt/mpib/lib"
    cp -a "$work/stage/opt" "$root"
    mv "$opt/lib/mpib" "$work/softverbs/opt/mpib/lib"
    ln -s /opt/mpib/bin/mpib "$root/usr/bin/mpib"
    # Where every linker looks: NCCL_NET_PLUGIN=mpib needs no LD_LIBRARY_PATH.
    for library in libnccl-net-mpib.so librccl-net-mpib.so; do
        ln -s "/opt/mpib/lib/$library" "$root/usr/lib64/$library"
    done
    mv "$opt/lib/systemd/system" "$root/usr/lib/systemd"
    mv "$opt/share/man/man1" "$root/usr/share/man"
    gzip -9n "$root"/usr/share/man/man1/*
    mv "$opt/share/bash-completion" "$opt/share/zsh" "$opt/share/fish" "$root/usr/share"
    rmdir "$opt/lib/systemd" "$opt/share/man"
}

wheel() {
    local tree=$work/wheel info=$work/wheel/nccl_net_mpib-$wheel_version.dist-info
    mkdir -p "$tree/nccl_net_mpib" "$info/licenses"
    cp packaging/python/__*.py "$tree/nccl_net_mpib"
    cp -a "$work/stage/opt/mpib/bin" "$tree/nccl_net_mpib/bin"
    mkdir -p "$tree/nccl_net_mpib/lib/mpib/softverbs" "$tree/nccl_net_mpib/share/doc"
    # A wheel holds no links.
    cp "$work/build/libnccl-net-mpib.so" "$tree/nccl_net_mpib/lib"
    cp "$work"/build/softverbs/{libibverbs.so.1,softverbs-ctl} "$tree/nccl_net_mpib/lib/mpib/softverbs"
    cp -a "$work/stage/opt/mpib/share/doc/mpib/." "$tree/nccl_net_mpib/share/doc"
    cp LICENSE LICENSE-MIT LICENSE-APACHE "$info/licenses"
    cp packaging/python/entry_points.txt "$info"
    sed "s/@VERSION@/$wheel_version/; s|@HOMEPAGE@|$HOMEPAGE|; /^Project-URL: .*, $/d" packaging/python/METADATA >"$info/METADATA"
    sed "s/@ARCH@/$1/" packaging/python/WHEEL >"$info/WHEEL"
    chmod -R u=rwX,go=rX "$tree"
    python3 -m wheel pack "$tree" --dest-dir "$out" >/dev/null
}

tools
mkdir -p "$out"
scripts/sbom.sh
rm -f "$out"/mpib-*.tgz
scripts/chart.sh --package "$out"
for architecture in "${architectures[@]}"; do
    work=$out/.work/$architecture debian=arm64
    [ "$architecture" != x86_64 ] || debian=amd64
    rm -rf "$work" "$out"/*"$architecture"* "$out"/*_"$debian".deb
    mkdir -p "$work"
    say "building for $architecture"
    build "$architecture"
    strip
    check "$architecture"
    # Documents come from an mpib that runs here.
    [ "$architecture" != "$(uname -m)" ] || export MPIB=$work/build/mpib
    [ -n "${MPIB:-}" ] || fail "build for $(uname -m) first, or set MPIB to an mpib that runs here"
    mkdir "$work/build/sbom"
    cp build/sbom/*.json "$work/build/sbom"
    scripts/stage.sh "$work/build" "$work/stage" /opt/mpib
    say "packing for $architecture"
    archive "$out/$name-$version-linux-$architecture.tar.gz" "$work/stage/opt" mpib
    archive "$out/$name-$version-linux-$architecture-debug.tar.gz" "$work/debug" mpib
    system_trees
    for kind in deb rpm; do
        scripts/pack.sh $kind $name "$system_version" "$architecture" "$work/root" "$out"
        scripts/pack.sh $kind mpib-softverbs "$system_version" "$architecture" "$work/softverbs" "$out"
    done
    wheel "$architecture"
done
cp build/sbom/*.json "$out"
rm -rf "$out/.work"
(cd "$out" && rm -f SHA256SUMS && sha256sum -- * >.sums && mv .sums SHA256SUMS)
say "wrote $out:"
(cd "$out" && ls -sh)
