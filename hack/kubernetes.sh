#!/usr/bin/env bash
# Builds the Kubernetes programs of the tests and the demo from test/kubernetes into bin/kubernetes, each only when it
# is missing or older than that module's go.mod or go.sum. The first build takes minutes, later ones use Go's cache.
# Usage: hack/kubernetes.sh [etcd|kube-apiserver|kube-proxy|kubeadm|kubectl ...]     (default: etcd kube-apiserver)
set -euo pipefail
cd "$(dirname "$0")/../test/kubernetes"
bin=$(cd ../.. && pwd)/bin/kubernetes
[ $# -gt 0 ] || set -- etcd kube-apiserver

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${version#v}"
flags="-s -w"
for set in gitVersion="$version" gitMajor="$major" gitMinor="$minor" gitTreeState=clean; do
  flags+=" -X k8s.io/component-base/version.$set"
done

for name in "$@"; do
  case $name in
  etcd) package=go.etcd.io/etcd/server/v3 ;;
  kube-apiserver | kube-proxy | kubeadm | kubectl) package=k8s.io/kubernetes/cmd/$name ;;
  *) echo "unknown program: $name" >&2 && exit 2 ;;
  esac
  state="up to date"
  if [ ! -x "$bin/$name" ] || [ go.mod -nt "$bin/$name" ] || [ go.sum -nt "$bin/$name" ]; then
    start=$SECONDS
    CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$bin/$name" "$package"
    touch "$bin/$name" # go build leaves an unchanged program, and its time, alone
    state="built in $((SECONDS - start)) s"
  fi
  echo "bin/kubernetes/$name: $state"
done
