#!/usr/bin/env bash
# Lays out what an installation holds. usage: stage.sh BUILD ROOT PREFIX [LIBDIR]
#   BUILD   the folder that scripts/build.sh filled
#   ROOT    an empty folder, which stands for /
#   LIBDIR  where the plugin goes; default PREFIX/lib
# MPIB names an mpib that runs on this machine, if the one in BUILD does not.
set -euo pipefail

cd "$(dirname "$0")/.."
usage="usage: stage.sh BUILD ROOT PREFIX [LIBDIR]"
build=${1:?$usage} root=${2:?$usage} prefix=${3:?$usage} libdir=${4:-$3/lib}
lib=$root$libdir share=$root$prefix/share doc=$root$prefix/share/doc/mpib
tool=${MPIB:-$build/mpib}

put() { install -D -m "$@"; }

for file in libnccl-net-mpib.so mpib softverbs/libibverbs.so.1 softverbs/softverbs-ctl; do
    if [ ! -f "$build/$file" ]; then
        echo "stage: there is no $build/$file; run \"make build\" first (as yourself, not as root)" >&2
        exit 1
    fi
done
put 755 "$build/mpib" "$root$prefix/bin/mpib"
put 644 "$build/libnccl-net-mpib.so" "$lib/libnccl-net-mpib.so"
# RCCL looks for this name with NCCL_NET_PLUGIN=mpib. "mpib enable" makes the names that NCCL and
# RCCL open without a setting.
ln -s libnccl-net-mpib.so "$lib/librccl-net-mpib.so"
# In a separate folder: on the default library path it would replace the real libibverbs.
put 644 "$build/softverbs/libibverbs.so.1" "$lib/mpib/softverbs/libibverbs.so.1"
put 755 "$build/softverbs/softverbs-ctl" "$lib/mpib/softverbs/softverbs-ctl"
ln -s libibverbs.so.1 "$lib/mpib/softverbs/libibverbs.so"

# The agent's units name files by their final paths. /etc/mpib/agent.toml is the operator's.
for unit in mpib-agent.service mpib-agent.socket mpib-agent-user.service; do
    put 644 "packaging/systemd/$unit" "$root$prefix/lib/systemd/system/$unit"
    sed -i "s|@PREFIX@|$prefix|g" "$root$prefix/lib/systemd/system/$unit"
done
put 644 packaging/systemd/mpib.sysusers "$root$prefix/lib/sysusers.d/mpib.conf"
put 644 packaging/agent.toml "$doc/agent.toml"

# Licences of this project and of the software that its programs contain.
put 644 -t "$doc" LICENSE LICENSE-APACHE LICENSE-MIT
put 644 -t "$doc/third-party" packaging/notices/*.txt
[ ! -d "$build/sbom" ] || put 644 -t "$doc/sbom" "$build"/sbom/*.json
# For the hosts of Grafana and Prometheus.
put 644 -t "$share/mpib/grafana" packaging/grafana/{fleet,host}.json packaging/grafana/alerts.yaml

"$tool" man-pages "$share/man/man1"
mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
"$tool" completions bash >"$share/bash-completion/completions/mpib"
"$tool" completions zsh >"$share/zsh/site-functions/_mpib"
"$tool" completions fish >"$share/fish/vendor_completions.d/mpib.fish"
chmod -R u=rwX,go=rX "$root"
