#!/bin/sh
# Builds libibverbs.so.1 with the symbol versions of rdma-core. Unchanged programs run on it.
# usage: build-libibverbs.sh OUTDIR PROFILE        (PROFILE: dev or release)
# With BUILD_TARGET in the environment, a target of cargo-zigbuild; CC must then be a C compiler for it.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: $0 OUTDIR PROFILE   (PROFILE: dev or release)" >&2
    exit 2
fi
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$1"
out=$(CDPATH= cd -- "$1" && pwd)
profile=$2
list=$here/ibverbs.symbols
work=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ -n "${BUILD_TARGET:-}" ]; then
    set -- cargo-zigbuild zigbuild --target "$BUILD_TARGET"
else
    set -- cargo build
fi
"$@" --locked --quiet --manifest-path "$here/Cargo.toml" --package softverbs --lib --profile "$profile"
target=$(cargo metadata --locked --quiet --manifest-path "$here/Cargo.toml" --no-deps --format-version 1 |
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
[ -z "${BUILD_TARGET:-}" ] || target=$target/${BUILD_TARGET%%.*}
case $profile in
    dev) archive=$target/debug/libsoftverbs.a ;;
    *) archive=$target/$profile/libsoftverbs.a ;;
esac

# The version script: one node per version, each depending on the previous one. Other symbols are
# local. "local" must be in the last node: in an earlier node it would hide the symbols that the
# stubs below assign to later nodes.
own="softverbs_complete_at_once softverbs_counters_json softverbs_run_faults"
awk -v extra="$own" '
    /^#/ || NF == 0 { next }
    { split($1, part, /@+/); name = part[1]; version = part[2] }
    !(version in node) { node[version] = ""; order[++count] = version }
    $1 ~ /@@/ { node[version] = node[version] "\n        " name ";" }
    END {
        for (i = 1; i <= count; i++) {
            printf "%s {\n    global:%s\n", order[i], node[order[i]]
            printf "}%s;\n", (i == 1 ? "" : " " order[i - 1])
        }
        gsub(/ /, "; ", extra)
        printf "SOFTVERBS {\n    global:\n        %s;\n    local:\n        *;\n};\n", extra
    }' "$list" > "$work/ibverbs.map"

# Stubs for versions that only old programs import.
awk '
    /^#/ || $1 !~ /[^@]@[^@]/ { next }
    FNR && !started++ { print "#include <errno.h>\n#include <stddef.h>\nvoid softverbs_unsupported(const char *);" }
    {
        type = $2 == "null" ? "void *" : $2 == "void" ? "void" : $2 == "zero" ? "unsigned long long" : "int"
        value = $2 == "null" ? "return NULL;" : $2 == "void" ? "" : $2 == "zero" ? "return 0;" : \
                $2 == "minus1" ? "return -1;" : "return EOPNOTSUPP;"
        call = $3 == "silent" ? "errno = EOPNOTSUPP;" : "softverbs_unsupported(\"" $1 "\");"
        n++
        printf "%s old_%d(void);\n%s old_%d(void) { %s %s }\n", type, n, type, n, call, value
        printf "__asm__(\".symver old_%d, %s\");\n", n, $1
    }' "$list" > "$work/old.c"

awk '!/^#/ && $1 ~ /@@/ { sub(/@@.*/, "", $1); print "-Wl,-u," $1 }' "$list" > "$work/undefined"
printf -- '-Wl,-u,%s\n' $own >> "$work/undefined"

# Zig's linker has no such option: it never makes text relocations.
text=-Wl,-z,text
[ -z "${BUILD_TARGET:-}" ] || text=
"${CC:-cc}" -shared -fPIC -O2 -o "$work/libibverbs.so.1" "$work/old.c" "@$work/undefined" "$archive" \
    -Wl,-soname,libibverbs.so.1 -Wl,--version-script="$work/ibverbs.map" -Wl,--gc-sections \
    -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete $text -Wl,-z,defs \
    -Wl,--as-needed -lgcc_s -lpthread -ldl -lm -lrt -lc

# Atomically: a program that starts meanwhile finds a complete library, old or new.
mv -f "$work/libibverbs.so.1" "$out/libibverbs.so.1"
# NCCL's own transport tries this name first, and would otherwise find the library of the system.
ln -sfn libibverbs.so.1 "$out/libibverbs.so"
