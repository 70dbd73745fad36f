#!/usr/bin/env bash
# Runs the tests that program the kernel on other kernels: Debian's, each in a virtual machine, see hack/vm.sh, with the nft of its suite.
# Usage: hack/kernels.sh [6.1|6.12|sid|backports ...]      (default: 6.1 6.12 sid; needs root for apt-get)
#   PACKAGES="pkg/apply test/lab"   packages whose tests to run
#   RUN=regexp                      tests to run, as in go test -run
#   COUNT=100                       repetitions in one machine, to find rare failures
#   MODE=full                       also tests that do not depend on the kernel: the prediction of packets, the rendering of nft text
#   LIMIT=seconds                   time limit of a machine, 3000 by default
# There are two machines at a time. Seconds in its output are the guest's, see boot, and then this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/vm.sh
# Nothing outside of a guest is waited for, so that one that is idle leaps to its next timer.
export LIMIT=${LIMIT:-3000} SLEEP=off
[ $# -gt 0 ] || set -- 6.1 6.12 sid

packages() {
  [ -z "${PACKAGES:-}" ] || { printf "%s\n" $PACKAGES && return; }
  for p in pkg/nft pkg/probe pkg/apply pkg/beside/conntrack pkg/beside/counters pkg/inspect/doctor pkg/host pkg/beside/nodeport pkg/beside/takeover test/lab test/scenario test/kernels; do
    if ls "$p"/*_test.go >/dev/null 2>&1; then echo "$p"; fi
  done
}

# tests ROOT: the test programs, and the programs that they call, except nft; the last are the matches and targets of iptables.
tests() {
  local p dir
  programs "$1" $(command -v ip ss xtables-nft-multi xtables-legacy-multi ipset ipvsadm) /usr/lib/*/xtables/*.so
  for p in nft legacy; do ln -s xtables-$p-multi "$1/usr/sbin/iptables-$p"; done
  install -D -t "$1/docs" docs/*.md # tests read ../../docs
  for p in $(packages | grep -v '^test/kernels$'); do
    dir=$1/tests/${p//\//-}
    mkdir "$dir"
    CGO_ENABLED=0 go test -c -ldflags '-s -w' -o "$dir/test" "./$p"
    [ ! -d "$p/testdata" ] || cp -r "$p/testdata" "$dir/"
    echo ./test -test.v -test.timeout 1800s ${RUN:+-test.run "'$RUN'"} ${COUNT:+-test.count "$COUNT"} $([ "${MODE:-short}" = full ] || echo -test.short) >"$dir/run"
  done
}

# without ROOT TEST: the program, and the tests that take modules from under it, set the clock, or look at a machine without IPv6.
without() {
  local dir=$1/tests/$2
  mkdir "$dir"
  CGO_ENABLED=0 go test -c -tags kernels -ldflags '-s -w' -o "$dir/test" ./test/kernels
  CGO_ENABLED=0 go build -ldflags '-s -w' -o "$dir/kube-nftproxy" ./cmd/kube-nftproxy
  echo ./test -test.v -test.run "$2" >"$dir/run"
}

# nft SUITE ROOT: a suite's nft with all that it loads.
nft() {
  local from=bin/nft/$1
  mkdir -p "$2"
  (
    cd "$from"
    {
      usr/lib/*-linux-gnu/ld-linux-*.so.2 --library-path "$(ls -d usr/lib/*-linux-gnu)" --list usr/sbin/nft | grep -o 'usr/lib/[^ ]*'
      ls usr/sbin/nft etc/protocols usr/lib/*-linux-gnu/ld-linux-*.so.2
    } | sort -u | cpio -pdmL --quiet "$2"
    cp -a --parents lib lib64 usr/lib64/ld-linux-*.so.2 "$2/"
  )
}

# nfts KERNEL ROOT: the nft of the kernel's suite as the guest's own, and the others for NFT_CHROOTS. That of bookworm writes rules, for a
# set of ranges with a protocol in its key, which kernels since 7 refuse; it lists the tables all the same.
nfts() {
  local suite own chroots=
  own=$(suite "$1")
  own=${own%-backports}
  for suite in bookworm trixie sid; do
    nft $suite "$2/nft/$suite"
    [[ $suite = "$own" || $suite = bookworm && ($1 = sid || $1 = backports) ]] || chroots+=:/nft/$suite
  done
  printf '#!/bin/sh\nexec chroot /nft/%s /usr/sbin/nft "$@"\n' "$own" >"$2/usr/sbin/nft"
  chmod 755 "$2/usr/sbin/nft"
  printf 'NFT_CHROOTS=%s\nHISTORY_STEPS=%s\nGOGC=400\nHASHSIZE=8192\n' "${chroots#:}" "${HISTORY_STEPS:-40}" >"$2/environment"
}

# report KERNEL LOG SECONDS: fails unless all tests ran and passed; the last is how long the machine took, to compare with its own seconds.
report() {
  awk -v kernel="$1" -v took="$3" '
    /^kernels: version / { version = $3 }
    /^ *--- PASS/ { pass++ }
    /^ *--- FAIL/ { fail++; print kernel ": " $0 }
    /^ *--- SKIP/ { skip++; print kernel ": " $0 }
    /^kernels: failed / { bad = 1; print kernel ": failed: " $3 }
    /^kernels: done / { seconds = $3 }
    END {
      pass += 0; fail += 0; skip += 0
      if (seconds == "") { print kernel ": the machine did not finish"; bad = 1 }
      printf "%s: linux %s: %d passed, %d failed, %d skipped, %s s, which took %s s\n", kernel, version, pass, fail, skip, seconds, took
      exit (bad || fail || !pass)
    }' <(tr -d '\r' <"$2")
}

tools
hack/nfts.sh >/dev/null
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
base "$work/guest"
tests "$work/guest"
if packages | grep -qx test/kernels; then
  for test in TestWithoutModules TestWithoutIPv6 TestClockJumps; do
    base "$work/$test"
    without "$work/$test" $test
  done
fi
status=0

# machine KERNEL ROOT NAME: runs the tests in a root file system.
machine() {
  local log=$cache/$1$3.log start=$SECONDS
  [ -n "$(ls "$2/tests" 2>/dev/null)" ] || return 0
  rm -f "$log"
  boot "$1" "$2" "$log"
  report "$1$3" "$log" $((SECONDS - start)) || { echo "$1$3: see $log" && return 1; }
}

# A machine has one processor, and the scenarios take as long as all the rest.
for kernel in "$@"; do
  fetch_kernel "$kernel"
  rm -rf "$work/scenarios" "$work/rest"
  cp -r "$work/guest" "$work/rest"
  nfts "$kernel" "$work/rest"
  cp -r "$work/rest" "$work/scenarios"
  rm -rf "$work/rest/tests/test-scenario" $(find "$work/scenarios/tests" -mindepth 1 -maxdepth 1 ! -name test-scenario)
  machine "$kernel" "$work/scenarios" -scenarios &
  scenarios=$!
  machine "$kernel" "$work/rest" "" || status=1
  machine "$kernel" "$work/TestWithoutModules" -without-modules || status=1
  APPEND=ipv6.disable=1 machine "$kernel" "$work/TestWithoutIPv6" -without-ipv6 || status=1
  if [ -d "$work/TestClockJumps" ]; then
    nfts "$kernel" "$work/TestClockJumps"
    machine "$kernel" "$work/TestClockJumps" -clock || status=1
    rm -rf "$work/TestClockJumps/nft"
  fi
  wait $scenarios || status=1
done
exit $status
