#!/usr/bin/env bash
# Unpacks the nft of Debian's suites, with the libraries that it loads, into bin/nft/SUITE, and prints those folders for NFT_CHROOTS: the
# tests of test/scenario let each version list the tables and load its own listing. Usage: hack/nfts.sh [SUITE ...]   (default: all three)
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/bin/nft/.cache
. hack/archive.sh
[ $# -gt 0 ] || set -- bookworm trixie sid

fetch_nft() {
  local folder=bin/nft/$1 dir
  [ ! -x "$folder/usr/sbin/nft" ] || return 0
  lists "$1"
  aptof "$1" get install --yes --no-install-recommends --download-only nftables >/dev/null
  rm -rf "$folder" "$folder.part"
  mkdir -p "$folder.part"
  mv "$cache/apt/$1"/archives/*.deb "$folder.part/"
  unpack "$folder.part"
  # As on a machine whose /usr is merged, wherever the packages have their files.
  for dir in bin lib lib64 sbin; do
    mkdir -p "$folder.part/$dir" "$folder.part/usr/$dir"
    cp -a "$folder.part/$dir/." "$folder.part/usr/$dir/"
    rm -r "${folder:?}.part/$dir"
    ln -s "usr/$dir" "$folder.part/$dir"
  done
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
