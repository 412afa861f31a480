#!/usr/bin/env bash
# Compares the manifests in packaging/kubernetes with the JSON schemas of Kubernetes. Unknown fields
# are errors. Installs the schemas into the user's cache if they are not there; with SETUP=no it
# fails instead. usage: manifests.sh
set -euo pipefail

cd "$(dirname "$0")/.."
# The releases whose schemas count.
releases=(1.34 1.36)
version=$(sed -n 's/^kubernetes-validate==//p' scripts/manifests.txt)
tools=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/nccl-net-mpib/kubernetes-validate-$version

say() { echo "manifests: $*" >&2; }

if [ ! -x "$tools/bin/kubernetes-validate" ]; then
    if [ "${SETUP:-}" = no ]; then
        say "kubernetes-validate $version is missing in $tools, and SETUP=no prevents the installation"
        exit 1
    fi
    say "installing kubernetes-validate $version (22 MB, by pip) into $tools. SETUP=no prevents this."
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement scripts/manifests.txt
fi
for release in "${releases[@]}"; do
    "$tools/bin/kubernetes-validate" --strict --kubernetes-version "$release" packaging/kubernetes/*.yaml
done
