#!/usr/bin/env bash
# Fuzzes all parsers, each target for FUZZTIME. Inputs that fail are kept in the package's testdata/fuzz, and go test repeats
# them. Usage: [FUZZTIME=30s] hack/fuzz.sh [TARGET ...]     (default: all; a target is Fuzz...)
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
while IFS=: read -r file target; do
  [ $# -eq 0 ] || [[ " $* " == *" $target "* ]] || continue
  echo "=== $(dirname "$file") $target"
  # Without a limit, making inputs smaller takes most of the time.
  go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 100x || failed=1
done < <(grep -rEo '^func Fuzz[A-Za-z]+' --include='*_test.go' cmd pkg test | sed 's/:func /:/' | sort)
exit $failed
