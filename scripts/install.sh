#!/usr/bin/env bash
# Installs what "make build" left. usage: install.sh PREFIX [DESTDIR]
#   LIBDIR    in the environment: where the plugin goes, default PREFIX/lib
#   ENABLE=1  NCCL uses the plugin without NCCL_NET_PLUGIN ("mpib enable")
# A list of what was installed stays, for uninstall.sh.
set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
prefix=${1:?usage: install.sh PREFIX [DESTDIR]}
root=${2:-}
libdir=${LIBDIR:-$prefix/lib}
list=$prefix/share/mpib/installed-files

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/stage"
scripts/stage.sh build "$work/stage" "$prefix" "$libdir"
(cd "$work/stage" && find . -mindepth 1 -printf '/%P\n') | sort >"$work/paths"

# Folders that were made here end with a slash in the list. Those of an older installation stay in
# it.
touch "$work/old"
[ ! -f "$root$list" ] || sort "$root$list" >"$work/old"
grep '/$' "$work/old" >"$work/list" || true
while read -r path; do
    if [ -d "$work/stage$path" ] && [ ! -L "$work/stage$path" ]; then
        if [ ! -d "$root$path" ]; then
            mkdir -p "$root$path"
            echo "$path/" >>"$work/list"
        fi
    else
        # By rename: a running job keeps the file that it has open.
        cp -P --preserve=mode "$work/stage$path" "$root$path.new"
        mv -fT "$root$path.new" "$root$path"
        echo "$path" >>"$work/list"
    fi
done <"$work/paths"
sort -u "$work/list" >"$root$list"
# Files of an older installation that this one does not have.
comm -23 "$work/old" "$root$list" | while read -r path; do rm -f "$root$path"; done
echo "installed under $root$prefix"
[ "${ENABLE:-}" != 1 ] || "$root$prefix/bin/mpib" enable "$root$libdir"
