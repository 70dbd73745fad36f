#!/usr/bin/env bash
# Measures kube-proxy and kube-nftproxy side by side on older kernels, Debian's, each in a virtual machine: test/compare in a
# guest of hack/vm.sh, all kernels at the same time. Half an hour for each, in which it keeps a processor busy; only ratios mean
# anything, because the guest's processor is emulated.
#   OUTPUT=.           writes docs/benchmarks-kernels.json and its table in docs/benchmarks-details.md
#   LIMIT=seconds      time limit of a machine, 7200 by default
#   ARGS=...           further flags of test/compare in the guest, such as -only 1000x10
# Usage: hack/bench-kernels.sh [6.1|6.12 ...]      (default: both; needs root for apt-get)
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/vm.sh
# An idle machine leaps to its next timer.
export LIMIT=${LIMIT:-7200} SLEEP=off MEMORY=6G
[ $# -gt 0 ] || set -- 6.1 6.12

hack/deps.sh
hack/build.sh
hack/kubernetes.sh etcd kube-apiserver kube-proxy
go build -o bin/compare ./test/compare
tools
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
base "$work/guest"
programs "$work/guest" $(command -v nft conntrack ip)
# In the guest the programs are where they are in the checkout.
checkout=$work/guest/tests/compare
install -D -t "$checkout/bin" bin/kube-nftproxy
install -D -t "$checkout/bin/kubernetes" bin/kubernetes/{etcd,kube-apiserver,kube-proxy}
install -D -t "$checkout/hack" hack/kubernetes.sh
CGO_ENABLED=0 go build -ldflags '-s -w' -o "$checkout/bin/compare" ./test/compare
# Busybox has an ip of its own; an interrupt makes compare tell what it waits for. The second serial line is a file of this machine.
echo "PATH=/usr/sbin:/usr/bin:\$PATH timeout -s INT 3600 bin/compare -emulated -raw figures.json ${ARGS:-} && cat figures.json >/dev/ttyS1" >"$checkout/run"
figures=
for kernel in "$@"; do
  rm -f "$cache/$kernel".bench.{log,json}
  boot "$kernel" "$work/guest" "$cache/$kernel.bench.log" -serial "file:$cache/$kernel.bench.json" &
  figures+=${figures:+,}$cache/$kernel.bench.json
done
wait
for kernel in "$@"; do
  if ! grep -a '^kernels: done' "$cache/$kernel.bench.log" || grep -a '^kernels: failed' "$cache/$kernel.bench.log"; then
    echo "$kernel: see $cache/$kernel.bench.log" >&2 && exit 1
  fi
done
bin/compare -kernels "$figures" -output "${OUTPUT:-}"
