#!/usr/bin/env bash
# Boots Debian's kernels in virtual machines without disk or network, which work without KVM. Sourced by hack/kernels.sh and
# hack/bench-kernels.sh. Packages, images and logs go to .cache/kernels; on the machine itself only QEMU and tools are installed.
set -euo pipefail
cache=$PWD/.cache/kernels
. hack/archive.sh

# suite KERNEL: prints Debian's suite of a kernel; the last two have the newest kernel of the suite.
suite() {
  case $1 in
  6.1) echo bookworm ;;
  6.12) echo trixie ;;
  backports) echo trixie-backports ;;
  sid) echo sid ;;
  *) echo "unknown kernel: $1" >&2 && exit 2 ;;
  esac
}

# fetch_kernel KERNEL: recent suites have cut it into several packages.
fetch_kernel() {
  local suite image
  [ ! -d "$cache/$1" ] || return 0
  suite=$(suite "$1")
  aptof "$suite" get update
  image=$(aptof "$suite" cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p')
  fetch "$suite" "$cache/$1" "$image" $(aptof "$suite" cache depends "$image" | grep -o 'linux-[a-z]*-[0-9].*' || true)
}

# modules FOLDER ROOT: copies the listed modules and their dependencies into a root file system.
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

# base ROOT: the base of every guest: busybox, and an init that executes each /tests/NAME/run.
base() {
  mkdir -p "$1/bin" "$1/sbin" "$1/usr/sbin" "$1/tests"
  cp "$cache/busybox/bin/busybox" "$1/bin/"
  ln -s /bin/busybox "$1/sbin/modprobe"
  cp test/kernels/init "$1/init"
  chmod 755 "$1/init"
  install -D /etc/protocols "$1/etc/protocols"
}

# programs ROOT FILE...: copies programs, with the libraries that they load.
programs() {
  local root=$1 p
  shift
  for p in "$@"; do
    install -D "$p" "$root/usr/${p#/usr/}"
    ldd "$p" | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" "$root$lib"; done
  done
}

# tools installs QEMU and the programs that the functions above call.
tools() {
  (for c in qemu-system-x86_64 cpio depmod xz; do command -v $c || exit; done) >/dev/null || {
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends qemu-system-x86 cpio kmod xz-utils >/dev/null
  }
  fetch bookworm "$cache/busybox" busybox-static
}

# boot KERNEL ROOT LOG [OPTION...]: runs a guest with that root file system until it is done, or $LIMIT seconds have passed; $APPEND goes
# to its command line.
# Its clock counts instructions, two nanoseconds each, so that a busy machine makes tests slow but lets none run into a
# timeout. QEMU can do that for one processor.
boot() {
  local kernel=$1 root=$2 log=$3
  shift 3
  fetch_kernel "$kernel"
  cp -r "$root" "$root.$kernel"
  modules "$cache/$kernel" "$root.$kernel"
  (cd "$root.$kernel" && find . | cpio -o -H newc --quiet) >"$root.$kernel.cpio"
  rm -r "$root.$kernel"
  timeout "$LIMIT" qemu-system-x86_64 -M q35 -cpu max -smp 1 -icount "shift=1,sleep=${SLEEP:-on}" -m "${MEMORY:-2G}" \
    -display none -monitor none -serial "file:$log" "$@" -no-reboot -nic none \
    -kernel "$(ls "$cache/$kernel"/{boot/vmlinuz-*,usr/lib/modules/*/vmlinuz} 2>/dev/null | head -1)" -initrd "$root.$kernel.cpio" \
    -append "console=ttyS0 quiet panic=-1 ${APPEND:-}" || true
  rm "$root.$kernel.cpio"
}
