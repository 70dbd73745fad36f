#!/usr/bin/env bash
# Builds the programs of the demo if their sources have changed, and runs the demo. It needs root, for network namespaces, and Go.
# Usage: [API=1] [KEEP=1] hack/demo.sh     (API: with a real kube-apiserver; KEEP: a prompt on the node at the end)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

fail() {
  echo "demo: $*" >&2
  exit 1
}

# on reports whether a variable is set to anything but 0.
on() { [ -n "$1" ] && [ "$1" != 0 ]; }

[ "$(id -u)" -eq 0 ] || fail "the demo creates network namespaces; run it as root: sudo make demo"
flags=() needs=("nft nftables") kubernetes=(kube-proxy)
if on "${API:-}"; then
  flags+=(-api) needs+=("ip iproute2") kubernetes+=(etcd kube-apiserver)
fi
if on "${KEEP:-}"; then flags+=(-keep); fi
hack/deps.sh --only "${needs[@]}"
echo "demo: building programs (the first build takes minutes, later ones a second)"
hack/build.sh
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/demo ./test/demo
hack/kubernetes.sh "${kubernetes[@]}"
exec bin/demo "${flags[@]}"
