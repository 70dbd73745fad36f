#!/usr/bin/env bash
# Builds the programs of the demo if their sources have changed, and runs the demo. It needs root, for network namespaces, and
# Go. If nft is installed, it prints a part of the rules. Usage: [API=1] hack/demo.sh     (API: with a real kube-apiserver)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

fail() {
  echo "demo: $*" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || fail "the demo creates network namespaces; run it as root: sudo make demo"
command -v go >/dev/null || fail "go is not installed; see https://go.dev/doc/install"
flags=()
echo "demo: building bin/kube-nftproxy (the first build takes a minute, later ones a second)"
hack/build.sh
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/demo ./test/demo
case ${API:-} in
'' | 0) ;;
*)
  command -v ip >/dev/null || fail "ip is not installed; hack/deps.sh installs it"
  echo "demo: building etcd and kube-apiserver (the first build takes minutes, later ones a second)"
  hack/kubernetes.sh etcd kube-apiserver
  flags+=(-api)
  ;;
esac
exec bin/demo "${flags[@]}"
