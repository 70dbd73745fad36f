#!/usr/bin/env bash
# Rewrites the expected results of tests, in all packages whose tests have the flag -update. A reviewer reads the diff.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rlE 'flag\.Bool(Var)?\(.*"update"' --include='*_test.go' cmd pkg test | xargs -r -n1 dirname | sort -u |
  while read -r package; do
    # A test may fail after it has rewritten its golden; only the next run without -update counts.
    go test -count=1 "./$package" -update || true
  done
git status --short
