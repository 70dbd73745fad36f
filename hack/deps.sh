#!/usr/bin/env bash
# Installs missing programs that the tests need, with apt-get, on Debian 12 or newer. It does nothing if none is missing. Go must be
# installed. Usage: hack/deps.sh [--only] ["PROGRAM PACKAGE" ...]     (these programs also, or only these)
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

fail() {
  echo "deps: $*" >&2
  exit 1
}

command -v go >/dev/null || fail "go is not installed; see https://go.dev/doc/install"

missing=()
# need adds the package of a program, if the program is missing.
need() { # program, package
  command -v "$1" >/dev/null || missing+=("$2")
}

if [ "${1:-}" = --only ]; then
  shift
else
  # gcc is for the race detector.
  while read -r program package; do need "$program" "$package"; done <<LIST
nft       nftables
ip        iproute2
conntrack conntrack
sysctl    procps
setpriv   util-linux
curl      curl
git       git
jq        jq
openssl   openssl
xtables-legacy-multi iptables
ipset     ipset
ipvsadm   ipvsadm
gcc       gcc
rpm       rpm
LIST
  [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
  [ -e /etc/protocols ] || missing+=(netbase) # by which nft knows tcp
fi
for both in "$@"; do need "${both% *}" "${both#* }"; done
[ ${#missing[@]} -gt 0 ] || exit 0

install="apt-get install --yes --no-install-recommends ${missing[*]}"
command -v apt-get >/dev/null || fail "missing: ${missing[*]} (names of Debian packages); apt-get is missing, so install them yourself"
[ "$(id -u)" -eq 0 ] || fail "missing: ${missing[*]}; run as root: $install"
echo "deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
$install --quiet=2 </dev/null >/dev/null
