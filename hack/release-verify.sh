#!/usr/bin/env bash
# Verifies the files of a release: each one has its checksum, and the folder has no other file. With PUBLIC_KEY=FILE (PEM), it also verifies the signature
# of the checksums. It needs nothing but the folder and openssl.
# Usage: hack/release-verify.sh [FOLDER], by default bin/release/$VERSION
set -euo pipefail
key=${PUBLIC_KEY:+$(realpath "$PUBLIC_KEY")}
cd "${1:-$(dirname "$0")/../bin/release/${VERSION:?set VERSION, or name the folder}}"
# sha256sum follows links and accepts files of other folders.
[ -z "$(find . -mindepth 1 ! -type f)" ] || { echo "not a regular file: $(find . -mindepth 1 ! -type f)" >&2 && exit 1; }
if [ -n "$key" ]; then
  openssl dgst -sha256 -verify "$key" -signature <(base64 --decode SHA256SUMS.sig) SHA256SUMS >&2 || { echo "SHA256SUMS.sig is not the signature of SHA256SUMS by $key" >&2 && exit 1; }
fi
diff <(find . -type f ! -path ./SHA256SUMS ! -path ./SHA256SUMS.sig -printf '%P\n' | LC_ALL=C sort) <(cut -c 67- SHA256SUMS) >&2 ||
  { echo "the files differ from the list in SHA256SUMS" >&2 && exit 1; }
sha256sum --check --strict --quiet SHA256SUMS
echo "verified: $(wc -l <SHA256SUMS) files have the checksums in SHA256SUMS, $(sha256sum SHA256SUMS | cut -d ' ' -f 1)"
