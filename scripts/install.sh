#!/usr/bin/env bash
# Installs what "make build" left. usage: install.sh PREFIX [DESTDIR]
set -euo pipefail

cd "$(dirname "$0")/.."
prefix=${1:?usage: install.sh PREFIX [DESTDIR]}
root=${2:-}$prefix

for file in build/libnccl-net-mpib.so build/mpib build/softverbs/libibverbs.so.1; do
    if [ ! -f "$file" ]; then
        echo "install: there is no $file; run \"make build\" first (as yourself, not as root)" >&2
        exit 1
    fi
done
install -d "$root/lib/mpib/softverbs" "$root/bin"
install -m 755 build/libnccl-net-mpib.so "$root/lib/libnccl-net-mpib.so"
ln -sfn libnccl-net-mpib.so "$root/lib/libnccl-net.so"
ln -sfn libnccl-net-mpib.so "$root/lib/librccl-net-mpib.so"
install -m 755 build/mpib "$root/bin/mpib"
# In a separate folder: on the default library path it would replace the real libibverbs.
install -m 755 build/softverbs/libibverbs.so.1 "$root/lib/mpib/softverbs/libibverbs.so.1"
ln -sfn libibverbs.so.1 "$root/lib/mpib/softverbs/libibverbs.so"
# The agent's unit names the program by its final path. /etc/mpib/agent.toml is the operator's.
install -d "$root/lib/systemd/system" "$root/share/doc/mpib"
sed "s|@PREFIX@|$prefix|" packaging/systemd/mpib-agent.service >"$root/lib/systemd/system/mpib-agent.service"
chmod 644 "$root/lib/systemd/system/mpib-agent.service"
install -m 644 packaging/agent.toml "$root/share/doc/mpib/agent.toml"
# Licences of this project and of the software that its programs contain.
install -m 644 LICENSE LICENSE-APACHE LICENSE-MIT "$root/share/doc/mpib"
install -d "$root/share/doc/mpib/third-party"
install -m 644 packaging/notices/*.txt "$root/share/doc/mpib/third-party"
# For the hosts of Grafana and Prometheus.
install -d "$root/share/mpib/grafana"
install -m 644 packaging/grafana/dashboard.json packaging/grafana/alerts.yaml "$root/share/mpib/grafana"
echo "installed under $root"
