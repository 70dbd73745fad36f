#!/usr/bin/env bash
# Runs the tests that program the kernel on older kernels: Debian's, each in a virtual machine, see hack/vm.sh.
# Usage: hack/kernels.sh [6.1|6.12 ...]      (default: both; needs root for apt-get)
#   PACKAGES="pkg/apply test/lab"   packages whose tests to run
#   RUN=regexp                      tests to run, as in go test -run
#   MODE=short                      runs them with -test.short
#   LIMIT=seconds                   after which a machine is given up, 1500 by default
# Seconds in its output are the guest's, see boot.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/vm.sh
LIMIT=${LIMIT:-1500}
[ $# -gt 0 ] || set -- 6.1 6.12

packages() {
  [ -z "${PACKAGES:-}" ] || { echo "$PACKAGES" && return; }
  for p in pkg/nft pkg/apply pkg/host pkg/takeover test/lab test/scenario; do
    if ls "$p"/*_test.go >/dev/null 2>&1; then echo "$p"; fi
  done
}

# tests ROOT: the test programs, and what they call: nft and the like; the last are the matches and targets of iptables.
tests() {
  local p dir
  programs "$1" $(command -v nft xtables-nft-multi xtables-legacy-multi ipset ipvsadm) /usr/lib/*/xtables/*.so
  for p in $(packages); do
    dir=$1/tests/${p//\//-}
    mkdir "$dir"
    CGO_ENABLED=0 go test -c -ldflags '-s -w' -o "$dir/test" "./$p"
    [ ! -d "$p/testdata" ] || cp -r "$p/testdata" "$dir/"
    echo ./test -test.v -test.timeout 600s ${RUN:+-test.run "'$RUN'"} ${MODE:+-test.short} >"$dir/run"
  done
}

# report KERNEL LOG: fails unless all tests ran and passed.
report() {
  awk -v kernel="$1" '
    /^kernels: version / { version = $3 }
    /^ *--- PASS/ { pass++ }
    /^ *--- FAIL/ { fail++; print kernel ": " $0 }
    /^ *--- SKIP/ { skip++; print kernel ": " $0 }
    /^kernels: failed / { bad = 1; print kernel ": failed: " $3 }
    /^kernels: done / { seconds = $3 }
    END {
      pass += 0; fail += 0; skip += 0
      if (seconds == "") { print kernel ": the machine did not finish"; bad = 1 }
      printf "%s: linux %s: %d passed, %d failed, %d skipped, %s s\n", kernel, version, pass, fail, skip, seconds
      exit (bad || fail || !pass)
    }' <(tr -d '\r' <"$2")
}

tools
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
base "$work/guest"
tests "$work/guest"
status=0
for kernel in "$@"; do
  boot "$kernel" "$work/guest" "$cache/$kernel.log"
  report "$kernel" "$cache/$kernel.log" || { status=1 && echo "$kernel: see $cache/$kernel.log"; }
done
exit $status
