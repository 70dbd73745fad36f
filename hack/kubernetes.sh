#!/usr/bin/env bash
# Builds the Kubernetes programs of the tests and the demo, Helm and cosign, from test/kubernetes into bin/kubernetes, each only when it
# is missing or older than that module's go.mod or go.sum, or than its own sources there. The first build takes minutes, later ones use Go's cache.
# Usage: hack/kubernetes.sh [program ...]     (default: etcd kube-apiserver)
#   KUBERNETES=v1.36.3   another release of Kubernetes, into bin/kubernetes/v1.36.3, from a module with its versions
set -euo pipefail
cd "$(dirname "$0")/../test/kubernetes"
here=$PWD root=$(cd ../.. && pwd) bin=$(cd ../.. && pwd)/bin/kubernetes
[ $# -gt 0 ] || set -- etcd kube-apiserver

# another makes the Go module of another release: the tools of test/kubernetes, the requirements of that release, and
# its published staging repositories.
another() { # folder, version
  local folder=$1 version=$2 mod
  [ ! -e "$folder/go.sum" ] || return 0
  mkdir -p "$folder"
  mod=$(go mod download -json "k8s.io/kubernetes@$version" | jq -r .GoMod)
  {
    printf 'module kubernetes\n\n'
    sed -n '/^go /p; /^tool (/,/^)/p' go.mod
    echo "require k8s.io/kubernetes $version"
    sed -nE "s|^\s*(k8s.io/\S+) => ./staging/.*|replace \1 => \1 v0${version#v1}|p" "$mod"
  } >"$folder/go.mod"
  (cd "$folder" && go mod tidy)
}

reference=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
version=${KUBERNETES:-$reference} kubernetes=$here programs=$bin
if [ "$version" != "$reference" ]; then
  programs=$bin/$version kubernetes=$bin/$version/module
  another "$kubernetes" "$version"
fi
IFS=. read -r major minor _ <<<"${version#v}"
stamp=
for set in gitVersion="$version" gitMajor="$major" gitMinor="$minor" gitTreeState=clean; do
  stamp+=" -X k8s.io/component-base/version.$set"
done

for name in "$@"; do
  module=$kubernetes folder=$programs package=k8s.io/kubernetes/cmd/$name flags="-s -w$stamp" command=(go build)
  case $name in
  kube-apiserver | kube-controller-manager | kube-proxy | kube-scheduler | kubeadm | kubectl | kubelet) ;;
  agnhost | regression-issue-74839) package=k8s.io/kubernetes/test/images/$name ;;
  ginkgo) package=github.com/onsi/ginkgo/v2/ginkgo ;;
  e2e.test) package=k8s.io/kubernetes/test/e2e command=(go test -c -vet=off) ;;
  etcd) module=$here folder=$bin package=go.etcd.io/etcd/server/v3 ;;
  etcdutl) module=$here folder=$bin package=go.etcd.io/etcd/etcdutl/v3 ;;
  containerd | containerd-shim-runc-v2 | ctr)
    module=$here/containerd folder=$bin package=github.com/containerd/containerd/v2/cmd/$name flags="-s -w"
    command+=(-tags no_btrfs,no_devmapper,no_zfs)
    ;;
  helm-v3 | helm-v4)
    module=$here/helm folder=$bin package=helm.sh/helm/${name#helm-}/cmd/helm
    # As its Makefile does. v4 reads the version from the build information.
    minor=$(cd "$module" && go list -m -f '{{.Version}}' k8s.io/client-go | cut -d . -f 2)
    flags="-s -w -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$minor -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=$minor"
    ;;
  cilium-benchmark) module=$here/cilium folder=$bin package=github.com/cilium/cilium/pkg/loadbalancer/benchmark/cmd flags="-s -w" ;;
  cilium-event) module=$here/cilium folder=$bin package=./event flags="-s -w" ;;
  cosign) module=$here/cosign folder=$bin package=github.com/sigstore/cosign/v3/cmd/cosign flags="-s -w" ;;
  registry) module=$root/hack/image folder=$bin package=github.com/google/go-containerregistry/cmd/registry flags="-s -w" ;;
  coredns) module=$here/coredns folder=$bin package=. flags="-s -w" ;;
  *) echo "unknown program: $name" >&2 && exit 2 ;;
  esac
  program=$folder/$name state="up to date"
  own=
  # Packages of this project are folders of the module.
  if [ -x "$program" ] && [ -d "$module/$package" ]; then own=$(find "$module/$package" -newer "$program" -print -quit); fi
  if [ ! -x "$program" ] || [ "$module/go.mod" -nt "$program" ] || [ "$module/go.sum" -nt "$program" ] || [ -n "$own" ]; then
    start=$SECONDS
    (cd "$module" && CGO_ENABLED=0 "${command[@]}" -trimpath -ldflags "$flags" -o "$program" "$package")
    # The files beside agnhost in its image.
    [ "$name" != agnhost ] || (cd "$module" && install -m 644 "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.* "$folder")
    touch "$program" # go build leaves an unchanged program, and its time, alone
    state="built in $((SECONDS - start)) s"
  fi
  echo "${program#"$root/"}: $state"
done
