#!/usr/bin/env bash
# Packs a tree as a package of a distribution. usage: pack.sh deb|rpm NAME VERSION ARCHITECTURE TREE OUT
#   NAME          nccl-net-mpib or mpib-softverbs
#   VERSION       without a revision; that is 1
#   ARCHITECTURE  as the kernel names it
#   TREE          what to install, from /
#   OUT           the folder of the package
#   HOMEPAGE      in the environment: the address of the repository. Without it packages name none
#   SOURCE_DATE_EPOCH  in the environment: the time of all files, and of the changelog's entry
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
. scripts/words.sh
kind=$1 name=$2 version=$3 arch=$4 tree=$(realpath "$5") out=$(realpath "$6")
: "${SOURCE_DATE_EPOCH:?}"
maintainer=$(workspace_field authors)
homepage=${HOMEPAGE:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
cp -a "$tree" "$root"

# Replaces the fields of a text, and drops the line of an address that there is not.
filled() {
    local address="s|@HOMEPAGE@|$homepage|"
    [ -n "$homepage" ] || address='/@HOMEPAGE@/d'
    sed -e "$address; s|@VERSION@|$version-1|; s|@MAINTAINER@|$maintainer|" "$@"
}

deb() {
    local machine=arm64 doc=$root/usr/share/doc/$name control=packaging/deb/control
    [ "$arch" != x86_64 ] || machine=amd64
    mkdir -p "$doc" "$root/DEBIAN"
    { filled packaging/deb/copyright && sed -n '/^Permission/,$ { s/^$/./; s/^/ /; p }' LICENSE-MIT; } >"$doc/copyright"
    printf '%s (%s-1) unstable; urgency=medium\n\n  * Version %s: changelog.gz of nccl-net-mpib has the changes.\n\n -- %s  %s\n' \
        "$name" "$version" "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$doc/changelog.Debian.gz"
    if [ "$name" = nccl-net-mpib ]; then
        gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
        cp packaging/deb/{postinst,prerm,postrm,triggers} "$root/DEBIAN"
        mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
        # Debian's linker looks in a folder for each architecture.
        mkdir "$root/usr/lib/$arch-linux-gnu"
        mv "$root"/usr/lib64/* "$root/usr/lib/$arch-linux-gnu"
        rmdir "$root/usr/lib64"
    else
        control=packaging/deb/control-softverbs
    fi
    finish
    filled -e "s|@ARCH@|$machine|; s|@SIZE@|$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f 1)|" "$control" >"$root/DEBIAN/control"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    # Older dpkg does not unpack zstd, which is the default of some.
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${name}_$version-1_$machine.deb" >/dev/null
}

rpm() {
    mkdir -p "$root/usr/share/licenses/$name"
    cp LICENSE LICENSE-MIT LICENSE-APACHE "$root/usr/share/licenses/$name"
    # Of these distributions; Debian wants the opposite.
    find "$root/opt" -type f -name 'lib*.so*' -exec chmod 755 {} +
    finish
    # All that is not a folder of every system.
    (cd "$root" && echo "%defattr(-,root,root,-)" &&
        find . \( -type f -o -type l \) -path './usr/share/licenses/*' -printf '%%license /%P\n' \
            -o \( -type f -o -type l \) -printf '/%P\n' -o -path './opt/mpib*' -printf '%%dir /%P\n' \
            -o \( -path './usr/share/licenses*' -o -path './usr/share/fish*' -o -path './usr/share/zsh*' \) \
            -printf '%%dir /%P\n') | sort >"$work/listed"
    local options=(--define "version $version" --define "tree $root" --define "listed $work/listed"
        --define "packager $maintainer" --define "_topdir $work/rpm"
        --define "changes $(date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y') $maintainer - $version-1")
    [ -z "$homepage" ] || options+=(--define "homepage $homepage")
    [ "$name" != mpib-softverbs ] || options+=(--with softverbs)
    rpmbuild -bb --quiet --target "$arch-linux" "${options[@]}" packaging/rpm/nccl-net-mpib.spec
    cp "$work/rpm/RPMS/$arch/$name-$version-1.$arch.rpm" "$out"
}

finish() {
    chmod -R u=rwX,go=rX "$root"
    find "$root" -exec touch -h --date="@$SOURCE_DATE_EPOCH" {} +
}

[ -n "$maintainer" ] || fail "Cargo.toml has no authors in [workspace.package]"
case $kind in
    deb) deb ;;
    rpm) rpm ;;
    *) fail "there is no kind $kind: deb or rpm" ;;
esac
