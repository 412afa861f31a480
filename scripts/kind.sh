#!/usr/bin/env bash
# Installs the Helm chart in a cluster of one node, by kind: the plugin is on the node, the agent shows a
# job of a pod beside it, and takes a drain. Needs docker, kind, kubectl and helm, and the tarball of
# "make package ARCH=x86_64". usage: kind.sh
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/words.sh
version=$(workspace_field version)
cluster=mpib-$$
work=$(mktemp -d)
export KUBECONFIG=$work/config
end() {
    if [ "$1" != 0 ]; then
        kubectl get pods --all-namespaces --output wide || true
        kubectl -n mpib describe pods || true
        kubectl -n mpib logs --all-containers --prefix --selector app.kubernetes.io/part-of=mpib || true
    fi >&2
    kind delete cluster --name "$cluster" || true
    rm -rf "$work"
}
trap 'end $?' EXIT

# Waits for a command that succeeds.
until_good() { # WHAT COMMAND...
    local n
    for ((n = 0; n < 60; n++)); do
        ! "${@:2}" || return 0
        sleep 2
    done
    fail "$1: not within two minutes"
}

for name in docker kind kubectl helm; do command -v "$name" >/dev/null || fail "$name is missing"; done
for image in installer diagnostic; do
    docker build --build-arg "VERSION=$version" -f "packaging/container/Dockerfile.$image" -t "mpib-$image:$version" .
done
kind create cluster --name "$cluster" --wait 180s
kind load docker-image --name "$cluster" "mpib-installer:$version" "mpib-diagnostic:$version"
kubectl create namespace mpib
kubectl label namespace mpib pod-security.kubernetes.io/enforce=privileged
# No node here has the label of an adapter.
chart=(packaging/helm/mpib --namespace mpib --set affinity=null --set images.installer.repository=mpib-installer
    --set images.agent.repository=mpib-diagnostic)
helm install mpib "${chart[@]}" --wait --timeout 5m
on_node() { docker exec "$cluster-control-plane" "$@"; }
on_node test -f /opt/mpib/lib/libnccl-net-mpib.so || fail "the plugin is not on the node"

agent=$(kubectl -n mpib get pods --selector app.kubernetes.io/name=mpib-agent --output 'jsonpath={.items[0].metadata.name}')
get() { kubectl get --raw "/api/v1/namespaces/mpib/pods/$agent:9119/proxy$1"; }
get /healthz >/dev/null
get / | grep -q '<title>' || fail "the agent has no page"
kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: mpib}
spec:
  restartPolicy: Never
  containers:
    - name: job
      image: mpib-diagnostic:$version
      command: [mpib, perf, --sizes, 64K, --time, "600", --no-check]
      env:
        - {name: LD_LIBRARY_PATH, value: /opt/mpib/lib/mpib/softverbs}
        - {name: MPIB_AGENT_UID, value: "10001"}
      securityContext: {runAsUser: 2000}
      volumeMounts:
        - {name: agent, mountPath: /run/mpib, readOnly: true}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    - name: agent
      hostPath: {path: /run/mpib, type: Directory}
    - name: shm
      emptyDir: {medium: Memory}
YAML
shows_the_job() { get /metrics | grep -qx 'mpib_processes 2'; }
until_good "metrics of the job's processes" shows_the_job
kubectl -n mpib exec "$agent" --container agent -- mpib drain soft1:1 --force --reason test
get /api/v1/host | grep -q '"drained":\["soft1:1"\]' || fail "the port is not drained"
kubectl -n mpib delete pod job --now

helm upgrade mpib "${chart[@]}" --set installer.remove=true --wait --timeout 5m
is_removed() { on_node test ! -e /opt/mpib/lib/libnccl-net-mpib.so; }
until_good "removal of the plugin from the node" is_removed
helm uninstall mpib --namespace mpib --wait
echo "the chart works in a cluster"
