#!/usr/bin/env bash
# Writes the system calls of kube-nftproxy into the first rule of deploy/seccomp/kube-nftproxy.json (root). strace records them while tests
# run the program and its commands: without an API server, and in pods and on nodes of a real API server. The other rules are written by hand.
# New calls are added; FRESH=1 also removes the calls that no test made. Usage: hack/seccomp.sh
set -euo pipefail
cd "$(dirname "$0")/.."
profile=deploy/seccomp/kube-nftproxy.json
command -v strace >/dev/null || { echo "seccomp: strace is not installed" >&2 && exit 1; }
traces=$(mktemp -d)
trap 'rm -rf "$traces"' EXIT

record() { # arguments of go test...
  # A test that is too slow under strace may fail. Its calls count.
  KNP_SYSCALLS=$traces REQUIRE_NETNS=1 go test -count=1 "$@" || echo "seccomp: go test $*: failed" >&2
}
[ "$(uname -m)" = x86_64 ] || { echo "seccomp: record on x86_64" >&2 && exit 1; }
record ./cmd/kube-nftproxy -run 'TestConfined|TestTwoInstances'
record -tags e2e -timeout 30m ./test/e2e -run 'TestDocumentedCommands|TestDeploy|TestDebugging|TestNodePortsOnLoopback|TestOperatorAsks|TestHealthCheckNodePort$|TestKubeProxyIsReported'

# In each trace, the program begins with its execve. A program with libraries is another one with the same name.
recorded=$(awk 'FNR == 1 { on = 0 } /execve\("[^"]*\/kube-(nft)?proxy"/ { on = 1 } on && /"\/etc\/ld\.so\./ { other[FILENAME] }
  on && match($0, /^[0-9]+ +[a-z][a-z0-9_]*\(/) { name = substr($0, RSTART, RLENGTH - 1); sub(/^[0-9]+ +/, "", name); made[FILENAME, name] }
  END { for (key in made) { split(key, part, SUBSEP); if (!(part[1] in other)) print part[2] } }' "$traces"/* | sort -u | jq -Rn '[inputs]')
jq --argjson recorded "$recorded" --arg fresh "${FRESH:-}" '
  ([.syscalls[1:][].names[]]) as $others |
  .syscalls[0].names = ((if $fresh == "" then .syscalls[0].names else [] end) + $recorded | unique - $others)' "$profile" >"$traces/profile"
diff "$profile" "$traces/profile" && echo "seccomp: $profile is up to date"
cp "$traces/profile" "$profile"
