#!/bin/sh
# Copies the plugin's folder to one of the host. Each file is replaced by rename: a process keeps the
# file that it has opened. Files of an earlier release that this one lacks are removed.
# libnccl-net.so is not copied: jobs choose the plugin by NCCL_NET_PLUGIN. Nor is softverbs, which is
# for tests.
# usage: install-to-host.sh [--remove] [PAYLOAD [HOST]]     (/payload and /host)
set -eu
# All users of the host read the files.
umask 022

fail() {
    echo "install-to-host: $*" >&2
    exit 1
}

remove=no
[ "${1:-}" != --remove ] || { remove=yes && shift; }
payload=${1:-/payload} host=${2:-/host}
# The files that this script has put there.
list=$host/share/mpib/installed-by-image

[ -d "$host" ] || fail "$host is not there: mount the host's folder, for example -v /opt/mpib:/host"
# The fifth field of a line is where the file system is mounted, the sixth its options.
options=$(awk -v host="$(cd "$host" && pwd -P)" '$5 == host { found = $6 } END { print found }' /proc/self/mountinfo)
case ,$options, in
    *,noexec,*) [ $remove = yes ] || fail "$host is mounted with noexec: no program could load the plugin from there. Choose another folder of the host" ;;
esac
if [ $remove = yes ]; then
    [ -f "$list" ] || { echo "nothing is installed in $host" && exit; }
    files=
else
    plugin=$(find "$payload" -type f -name libnccl-net-mpib.so | head -n 1)
    [ -n "$plugin" ] || fail "there is no libnccl-net-mpib.so below $payload"
    prefix=${plugin%/lib/libnccl-net-mpib.so}
    # The second one is the list of "make install".
    files=$(cd "$prefix" && find . \( -type f -o -type l \) ! -path ./lib/libnccl-net.so \
        ! -path ./share/mpib/installed-files ! -path './lib/mpib/*' | sort)
fi

for file in $files; do
    mkdir -p "$host/$(dirname "$file")"
    cp -P "$prefix/$file" "$host/$file.new"
    mv -f "$host/$file.new" "$host/$file"
done

if [ -f "$list" ]; then
    while read -r file; do
        if ! printf '%s\n' "$files" | grep -qxF -- "$file"; then
            rm -f "$host/$file"
        fi
    done <"$list"
fi
if [ $remove = yes ]; then
    rm -f "$list"
    find "$host" -mindepth 1 -depth -type d -exec rmdir {} \; 2>/dev/null || true
    echo "removed from $host"
else
    mkdir -p "$(dirname "$list")"
    printf '%s\n' "$files" >"$list.new"
    mv -f "$list.new" "$list"
    echo "installed in $host"
fi
