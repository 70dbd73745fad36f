#!/usr/bin/env bash
# Repeats for long what the tests do a few times: faults that others cause, and restarts under load.
# Usage: [RESTARTS=1000] [REPAIRS=20] hack/soak.sh     (needs root; some twenty minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "this makes network namespaces: run it as root" >&2 && exit 1; }
export REQUIRE_NETNS=1 RESTARTS=${RESTARTS:-1000} REPAIRS=${REPAIRS:-20}
mkdir -p bin/test
status=0
soak() { # package, tests
  go test -tags e2e -count=1 -timeout 3h -v -run "$2" "$1" >>bin/test/soak.txt 2>&1 || status=1
}
: >bin/test/soak.txt
hack/kubernetes.sh etcd kube-apiserver
soak ./test/e2e '^TestRepair$'
soak ./test/switchover '^TestRestarts$'
grep -E '^(--- |FAIL|ok)|_test.go:' bin/test/soak.txt
exit $status
