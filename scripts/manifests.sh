#!/usr/bin/env bash
# Compares the manifests in packaging/kubernetes with the JSON schemas of Kubernetes. Unknown fields
# are errors. Installs the schemas into the user's cache if they are not there; with SETUP=no it
# fails instead. usage: manifests.sh
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
# The releases whose schemas count.
releases=(1.34 1.36)
version=$(sed -n 's/^kubernetes-validate==//p' scripts/manifests.txt)
tools=$cache/kubernetes-validate-$version

if [ ! -x "$tools/bin/kubernetes-validate" ]; then
    installs "kubernetes-validate $version in $tools" "installing kubernetes-validate $version (22 MB, by pip) into $tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement scripts/manifests.txt
fi
for release in "${releases[@]}"; do
    "$tools/bin/kubernetes-validate" --strict --kubernetes-version "$release" packaging/kubernetes/*.yaml
done
