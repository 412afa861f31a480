#!/usr/bin/env bash
# Removes what install.sh installed, and the links of "mpib enable" to it.
# usage: uninstall.sh PREFIX [DESTDIR]
set -euo pipefail
export LC_ALL=C

prefix=${1:?usage: uninstall.sh PREFIX [DESTDIR]}
root=${2:-}
list=$root$prefix/share/mpib/installed-files

if [ ! -f "$list" ]; then
    echo "uninstall: there is no $list: nothing was installed under $root$prefix, or by an older release" >&2
    exit 1
fi
paths=$(sort -r "$list")
"$root$prefix/bin/mpib" disable --all || echo "uninstall: links of \"mpib enable\" may be left" >&2
rm "$list"
while read -r path; do
    case $path in
        # A folder that holds files of others stays.
        */) rmdir --ignore-fail-on-non-empty "$root$path" 2>/dev/null || true ;;
        *) rm -f "$root$path" ;;
    esac
done <<<"$paths"
echo "removed from $root$prefix"
