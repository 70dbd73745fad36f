#!/usr/bin/env bash
# Repeats for more than an hour what the tests do a few times: faults caused by other programs, the API server away for minutes, restarts
# under load, and the changes of a large cluster in a day.
# Usage: [RESTARTS=1000] [REPAIRS=20] [API_FAULT=150s] [CHAOS=10m] [CHANGES=8640000] [SERVICES=10000] [HISTORY_MINUTES=30] [HOSTILE_STEPS=500]
#        hack/soak.sh (needs root; some hundred minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "this script creates network namespaces: run it as root" >&2 && exit 1; }
export REQUIRE_NETNS=1 RESTARTS=${RESTARTS:-1000} REPAIRS=${REPAIRS:-20}
export HISTORY_MINUTES=${HISTORY_MINUTES:-30} HOSTILE_STEPS=${HOSTILE_STEPS:-500}
export API_FAULT=${API_FAULT:-150s} CHAOS=${CHAOS:-10m} CHANGES=${CHANGES:-8640000} SERVICES=${SERVICES:-10000}
mkdir -p bin/test
status=0
soak() { # package, tests
  go test -tags e2e,twin -count=1 -timeout 3h -v -run "$2" "$1" >>bin/test/soak.txt 2>&1 || status=1
}
: >bin/test/soak.txt
hack/kubernetes.sh etcd kube-apiserver
soak ./test/e2e '^TestRepair$'
soak ./test/scenario '^TestHistories$'
soak ./test/hostile '^(TestHistories|TestCrowds|TestRememberedClients)$'
soak ./test/e2e '^TestAPIFaults$'
soak ./test/switchover '^TestRestarts$'
soak ./test/soak '^TestTwinSoak$'
grep -E '^(--- |FAIL|ok)|_test.go:' bin/test/soak.txt
exit $status
