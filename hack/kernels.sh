#!/usr/bin/env bash
# Runs the tests that program the kernel on other kernels: Debian's, each in a virtual machine, see hack/vm.sh, with the nft of its suite.
# Usage: hack/kernels.sh [6.1|6.12|sid|backports ...]      (default: 6.1 6.12 sid; needs root for apt-get)
#   PACKAGES="pkg/apply test/lab"   packages whose tests to run
#   RUN=regexp                      tests to run, as in go test -run
#   MODE=full                       also what is the same on every kernel: the foretelling of packets, the writing of nft text
#   LIMIT=seconds                   after which a machine is given up, 3000 by default
# Seconds in its output are the guest's, see boot.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/vm.sh
LIMIT=${LIMIT:-3000}
[ $# -gt 0 ] || set -- 6.1 6.12 sid

packages() {
  [ -z "${PACKAGES:-}" ] || { printf "%s\n" $PACKAGES && return; }
  for p in pkg/nft pkg/probe pkg/apply pkg/host pkg/takeover test/lab test/scenario test/kernels; do
    if ls "$p"/*_test.go >/dev/null 2>&1; then echo "$p"; fi
  done
}

# tests ROOT: the test programs, and what they call, except nft; the last are the matches and targets of iptables.
tests() {
  local p dir
  programs "$1" $(command -v xtables-nft-multi xtables-legacy-multi ipset ipvsadm) /usr/lib/*/xtables/*.so
  for p in $(packages | grep -v '^test/kernels$'); do
    dir=$1/tests/${p//\//-}
    mkdir "$dir"
    CGO_ENABLED=0 go test -c -ldflags '-s -w' -o "$dir/test" "./$p"
    [ ! -d "$p/testdata" ] || cp -r "$p/testdata" "$dir/"
    echo ./test -test.v -test.timeout 1800s ${RUN:+-test.run "'$RUN'"} $([ "${MODE:-short}" = full ] || echo -test.short) >"$dir/run"
  done
}

# without ROOT TEST: the program, and the tests that take modules from under it, or look at a machine without IPv6.
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

# nfts KERNEL ROOT: the nft of the kernel's suite as the guest's own, and all of them for NFT_CHROOTS. That of bookworm writes rules, for a
# set of ranges with a protocol in its key, which kernels since 7 refuse; it lists the tables all the same.
nfts() {
  local suite chroots=
  for suite in bookworm trixie sid; do
    nft $suite "$2/nft/$suite"
    [[ $suite = bookworm && ($1 = sid || $1 = backports) ]] || chroots+=:/nft/$suite
  done
  suite=$(suite "$1")
  printf '#!/bin/sh\nexec chroot /nft/%s /usr/sbin/nft "$@"\n' "${suite%-backports}" >"$2/usr/sbin/nft"
  chmod 755 "$2/usr/sbin/nft"
  printf 'NFT_CHROOTS=%s\nHISTORY_STEPS=%s\n' "${chroots#:}" "${HISTORY_STEPS:-40}" >"$2/environment"
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
hack/nfts.sh >/dev/null
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
base "$work/guest"
tests "$work/guest"
if packages | grep -qx test/kernels; then
  for test in TestWithoutModules TestWithoutIPv6; do
    base "$work/$test"
    without "$work/$test" $test
  done
fi
status=0

# machine KERNEL ROOT NAME: runs the tests in a root file system.
machine() {
  [ -n "$(ls "$2/tests")" ] || return 0
  boot "$1" "$2" "$cache/$1$3.log"
  report "$1$3" "$cache/$1$3.log" || { status=1 && echo "$1$3: see $cache/$1$3.log"; }
}

for kernel in "$@"; do
  rm -rf "$work/root"
  cp -r "$work/guest" "$work/root"
  nfts "$kernel" "$work/root"
  machine "$kernel" "$work/root" ""
  if [ -d "$work/TestWithoutModules" ]; then
    machine "$kernel" "$work/TestWithoutModules" -without-modules
    APPEND=ipv6.disable=1 machine "$kernel" "$work/TestWithoutIPv6" -without-ipv6
  fi
done
exit $status
