#!/usr/bin/env bash
# Unpacks the nft of Debian's suites, with the libraries that it loads, into bin/nft/SUITE, and prints those folders for NFT_CHROOTS: the
# tests of test/scenario let each version list the tables and load its own listing. Usage: hack/nfts.sh [SUITE ...]   (default: all three)
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/bin/nft/.cache
. hack/archive.sh
[ $# -gt 0 ] || set -- bookworm trixie sid

fetch_nft() {
  local folder=bin/nft/$1
  [ ! -x "$folder/usr/sbin/nft" ] || return 0
  rm -rf "$folder"
  system "$1" "$folder.part" nftables
  rm -rf "$folder.part"/usr/share
  install -D /etc/protocols "$folder.part/etc/protocols" # by which it knows tcp
  mv "$folder.part" "$folder"
}

chroots=
for suite in "$@"; do
  fetch_nft "$suite"
  chroots+=${chroots:+:}$PWD/bin/nft/$suite
done
echo "$chroots"
