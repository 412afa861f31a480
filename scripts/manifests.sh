#!/usr/bin/env bash
# Compares manifests with the JSON schemas of Kubernetes. Unknown fields are errors. Installs the
# schemas into the user's cache if they are not there; with SETUP=no it fails instead.
# usage: manifests.sh [--python | FILE...]    (default: those in packaging/kubernetes)
#   --python  prints the Python that has the schemas and a reader of YAML
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
if [ "${1:-}" = --python ]; then
    echo "$tools/bin/python"
    exit
fi
files=("$@")
[ $# -gt 0 ] || files=(packaging/kubernetes/*.yaml)
for release in "${releases[@]}"; do
    "$tools/bin/kubernetes-validate" --strict --kubernetes-version "$release" "${files[@]}"
done
