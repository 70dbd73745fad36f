#!/usr/bin/env bash
# Measures kube-proxy and kube-nftproxy on one cluster, in one run: test/compare. SERVICES, ENDPOINTS and CHANGES set its size;
# OUTPUT=. writes the tables of README.md and docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
hack/deps.sh
hack/build.sh
hack/kubernetes.sh etcd kube-apiserver kube-proxy
go build -o bin/compare ./test/compare
exec bin/compare -services "${SERVICES:-10000}" -endpoints "${ENDPOINTS:-10}" -changes "${CHANGES:-5}" -output "${OUTPUT:-}"
