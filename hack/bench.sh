#!/usr/bin/env bash
# Measures kube-proxy and kube-nftproxy side by side on real clusters, in one run: test/compare. Takes two hours.
#   QUICK=1            a small size, in under five minutes
#   SIZES=10000x10,... only these sizes of the plan: Services x endpoints, or "10000x10 IPv6"
#   LIMITS=1           only the worst case: objects at their limits, and unrelated changes and repairs beside them; 15 minutes
#   ALGORITHMS=1       only Services of each algorithm; six minutes
#   VIPS=1             only new connections beside 10,000 load-balancer IPs and 1,000 port ranges; ten minutes
#   PACKETS=1          only first packets, with rules from none to kube-proxy's; 40 minutes. TURNS=9 loads the rules
#                      nine times, and SIZES has sizes as in "10000x1,50000xmixed IPv6 UDP"
#   DIRECT=1           only packets with direct server return, beside NAT and plain forwarding; two minutes
#   CILIUM=1           only the first sync of 45,000 Services and EndpointSlice events, by turns with Cilium's load balancer; four minutes after its build
#   GROWTH=1           only the growth of costs with the size of a cluster, without an API server; ten minutes
#   STARTS=20          only the load of the API server by 20 nodes that start at once; OUTPUT=. writes the table of 20 nodes
#   WATCHERS=20,200    only the load of the API server by clients of 20 and 200 nodes, and a roll-out to 200
#   CONTROLLERS=100    only the load of the API server by a rolling update that 100 nodes watch, with flags of kube-controller-manager; two minutes
#   OUTPUT=.           writes docs/benchmarks.json and the tables of docs/benchmarks.md, docs/benchmarks-details.md, docs/sizing.md, docs/scale.md, docs/dsr.md and README.md, and docs/plots
# The lane ratios of hack/test.sh measures less, in two minutes, and fails if a ratio is wrong by a factor.
# Usage: hack/bench.sh
set -euo pipefail
cd "$(dirname "$0")/.."
hack/deps.sh
hack/build.sh
[ -n "${GROWTH:-}" ] || hack/kubernetes.sh etcd kube-apiserver kube-proxy
go build -o bin/compare ./test/compare
limits() {
  REQUIRE_NETNS=1 go test -run '^$' -bench 'Limits|Room|Turns' -benchtime 1x ./pkg/proxy
  bin/compare -limits
}
if [ -n "${CILIUM:-}" ]; then
  hack/kubernetes.sh cilium-benchmark cilium-event
  for _ in 1 2 3; do
    REQUIRE_NETNS=1 go test -run '^$' -bench '(Planned|FirstSync)/45000x1$' -benchmem -benchtime 5x ./pkg/proxy | grep ^Benchmark
    bin/kubernetes/cilium-benchmark -services 45000 -iterations 5 | grep -A3 statistics
    # With PRIVILEGED_TESTS, Cilium's benchmark writes the maps of the kernel.
    unshare --mount sh -c 'mount -t bpf bpf /sys/fs/bpf && PRIVILEGED_TESTS=1 bin/kubernetes/cilium-benchmark -services 45000 -iterations 5' | grep -A3 statistics
    go test -run '^$' -bench Event -benchmem ./pkg/proxy | grep ^Benchmark
    bin/kubernetes/cilium-event
  done
  exit
fi
if [ -n "${LIMITS:-}" ]; then limits && exit; fi
if [ -n "${GROWTH:-}" ]; then bin/compare -growth -output "${OUTPUT:-}" && exit; fi
if [ -n "${ALGORITHMS:-}" ]; then bin/compare -algorithms -output "${OUTPUT:-}" && exit; fi
if [ -n "${VIPS:-}" ]; then bin/compare -vips -output "${OUTPUT:-}" && exit; fi
packets() { bin/compare -packets ${TURNS:+-turns "$TURNS"} -only "${SIZES:-}" -output "${OUTPUT:-}"; }
if [ -n "${PACKETS:-}" ]; then packets && exit; fi
if [ -n "${DIRECT:-}" ]; then bin/compare -direct -output "${OUTPUT:-}" && exit; fi
if [ -n "${STARTS:-}" ]; then bin/compare -starts "$STARTS" -only "${SIZES:-}" -output "${OUTPUT:-}" && exit; fi
if [ -n "${WATCHERS:-}" ]; then bin/compare -watchers "$WATCHERS" -only "${SIZES:-}" -output "${OUTPUT:-}" && exit; fi
if [ -n "${CONTROLLERS:-}" ]; then
  hack/kubernetes.sh kube-controller-manager
  bin/compare -controllers "$CONTROLLERS" -output "${OUTPUT:-}" && exit
fi
bin/compare ${QUICK:+-quick} -only "${SIZES:-}" -output "${OUTPUT:-}"
if [ -z "${QUICK:-}" ]; then
  bin/compare -algorithms -output "${OUTPUT:-}"
  bin/compare -vips -output "${OUTPUT:-}"
  SIZES='' packets
  bin/compare -direct -output "${OUTPUT:-}"
  limits
fi
if [ -n "${OUTPUT:-}" ]; then go run ./hack/plot "$OUTPUT"; fi
