#!/usr/bin/env bash
# Runs the benchmarks, in namespaces of their own, and keeps the output in bin/stages.txt for benchstat.
# Usage: [COUNT=1] [BENCH=.] hack/stages.sh [package ...]     (default: ./pkg/...)
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./pkg/...
mkdir -p bin
REQUIRE_NETNS=1 go test -run '^$' -bench "${BENCH:-.}" -benchmem -count "${COUNT:-1}" -timeout 60m "$@" |
  grep -v -e '^?' -e '^PASS$' -e '\[no test files\]' | tee bin/stages.txt
