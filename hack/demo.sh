#!/usr/bin/env bash
# Builds what the demo needs, each only where its sources changed, and runs it. It needs root, for network namespaces, and
# Go; nft, if it is there, prints a part of the rules. Usage: [API=1] hack/demo.sh     (API: with a real kube-apiserver)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

fail() {
  echo "demo: $*" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || fail "it makes network namespaces, so it has to run as root: sudo make demo"
command -v go >/dev/null || fail "go is not installed; see https://go.dev/doc/install"
flags=()
echo "demo: building bin/kube-nftproxy (a minute at the first time, then a second)"
hack/build.sh
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/demo ./test/demo
case ${API:-} in
'' | 0) ;;
*)
  command -v ip >/dev/null || fail "ip is not installed; hack/deps.sh installs it"
  echo "demo: building etcd and kube-apiserver (minutes at the first time, then a second)"
  hack/kubernetes.sh etcd kube-apiserver
  flags+=(-api)
  ;;
esac
exec bin/demo "${flags[@]}"
