#!/usr/bin/env bash
# Runs the tests that program the kernel on older kernels: Debian's, each in a virtual machine without disk or network.
# Works without KVM. Packages, images and logs go to .cache/kernels; on the machine itself only QEMU and tools are installed.
# Usage: hack/kernels.sh [6.1|6.12 ...]      (default: both; needs root for apt-get)
#   PACKAGES="pkg/apply test/lab"   packages whose tests to run
#   RUN=regexp                      tests to run, as in go test -run
#   MODE=short                      runs them with -test.short
#   LIMIT=seconds                   after which a machine is given up, 1500 by default
# Seconds in its output are the guest's, see boot.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/.cache/kernels
[ $# -gt 0 ] || set -- 6.1 6.12

packages() {
  [ -z "${PACKAGES:-}" ] || { echo "$PACKAGES" && return; }
  for p in pkg/nft pkg/apply pkg/host pkg/takeover test/lab test/scenario; do
    if ls "$p"/*_test.go >/dev/null 2>&1; then echo "$p"; fi
  done
}

# aptof SUITE COMMAND...: apt-get with lists of that suite only, from the archive that the machine is configured for.
aptof() {
  local suite=$1 dir=$cache/apt/$1 uri keyring
  shift
  uri=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources | head -1)
  keyring=$(sed -n 's/^Signed-By: *//p' /etc/apt/sources.list.d/*.sources | head -1)
  mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/archives/partial"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$uri" "$suite" "$keyring" \
    >"$dir/sources/$suite.sources"
  "apt-$1" -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$dir/sources" -o Dir::State::Lists="$dir/lists" \
    -o Dir::Cache="$dir" -o Dir::State::Status=/dev/null -o APT::Sandbox::User=root "${@:2}"
}

# fetch SUITE PACKAGE FOLDER: unpacks a package, unless it is there.
fetch() {
  [ ! -d "$3" ] || return 0
  [ -n "$(ls "$cache/apt/$1/lists" 2>/dev/null | grep Packages)" ] || aptof "$1" get update
  mkdir -p "$3.part"
  (cd "$3.part" && aptof "$1" get download "$2" && dpkg-deb -x ./*.deb . && rm ./*.deb)
  mv "$3.part" "$3"
}

suite() {
  case $1 in
  6.1) echo bookworm ;;
  6.12) echo trixie ;;
  *) echo "unknown kernel: $1" >&2 && exit 2 ;;
  esac
}

fetch_kernel() {
  local suite
  [ ! -d "$cache/$1" ] || return 0
  suite=$(suite "$1")
  aptof "$suite" get update
  fetch "$suite" "$(aptof "$suite" cache depends linux-image-amd64 | sed -n 's/.*Depends: //p')" "$cache/$1"
}

# modules FOLDER ROOT: copies the listed modules and what they depend on into a root file system.
modules() {
  local from to version
  from=$(ls -d "$1"/lib/modules/* "$1"/usr/lib/modules/* 2>/dev/null | head -1 || true)
  version=${from##*/}
  to=$2/lib/modules/$version
  depmod -b "${from%/lib/modules/*}" "$version"
  mkdir -p "$to"
  cp "$from"/modules.{builtin,builtin.modinfo,order} "$to"
  grep -v '^#' test/kernels/modules | while read -r glob; do (cd "$from" && ls kernel/$glob.ko* 2>/dev/null || true); done |
    awk 'NR == FNR { want[$1]; next } { sub(":", "", $1) } $1 in want { for (i = 1; i <= NF; i++) print $i }' \
      - "$from/modules.dep" | sort -u | (cd "$from" && cpio -pdm --quiet "$to")
  find "$to" -name '*.ko.xz' -exec xz -d {} +
  depmod -b "$2" "$version"
}

# base ROOT: what every guest has: busybox, nft and the like with their libraries, the test programs.
base() {
  local p dir
  mkdir -p "$1/bin" "$1/sbin" "$1/usr/sbin" "$1/tests"
  cp "$cache/busybox/bin/busybox" "$1/bin/"
  ln -s /bin/busybox "$1/sbin/modprobe"
  cp test/kernels/init "$1/init"
  chmod 755 "$1/init"
  # Programs with what they load: the last are the matches and targets of iptables.
  for p in $(command -v nft xtables-nft-multi xtables-legacy-multi ipset ipvsadm) /usr/lib/*/xtables/*.so; do
    install -D "$p" "$1/usr/${p#/usr/}"
    ldd "$p" | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" "$1$lib"; done
  done
  install -D /etc/protocols "$1/etc/protocols"
  echo ${RUN:+-test.run "$RUN"} ${MODE:+-test.short} >"$1/tests/args"
  for p in $(packages); do
    dir=$1/tests/${p//\//-}
    mkdir "$dir"
    CGO_ENABLED=0 go test -c -ldflags '-s -w' -o "$dir/test" "./$p"
    [ ! -d "$p/testdata" ] || cp -r "$p/testdata" "$dir/"
  done
}

# boot KERNEL IMAGE LOG: the guest's clock counts instructions, two nanoseconds each, so that a busy machine makes tests slow
# but lets none run into a timeout. QEMU can do that for one processor.
boot() {
  timeout "${LIMIT:-1500}" qemu-system-x86_64 -M q35 -cpu max -smp 1 -icount shift=1 -m 2G -display none -monitor none -serial "file:$3" \
    -no-reboot -nic none -kernel "$(ls "$cache/$1"/boot/vmlinuz-*)" -initrd "$2" -append "console=ttyS0 quiet panic=-1"
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

DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
PATH=$PATH:/usr/sbin:/sbin
if ! (for c in qemu-system-x86_64 cpio depmod xz; do command -v $c || exit; done) >/dev/null; then
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends qemu-system-x86 cpio kmod xz-utils >/dev/null
fi
mkdir -p "$cache"
fetch bookworm busybox-static "$cache/busybox"
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
base "$work/base"
status=0
for kernel in "$@"; do
  fetch_kernel "$kernel"
  cp -r "$work/base" "$work/root"
  modules "$cache/$kernel" "$work/root"
  (cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initramfs"
  rm -r "$work/root"
  boot "$kernel" "$work/initramfs" "$cache/$kernel.log" || true
  report "$kernel" "$cache/$kernel.log" || { status=1 && echo "$kernel: see $cache/$kernel.log"; }
done
exit $status
