#!/usr/bin/env bash
# Builds the files of a release in bin/release/$VERSION: the image for all architectures, and for each one the program and its
# SBOM; the kubectl plugin and its manifest for krew; the checksums of all. They depend only on the source and the Go version.
#   VERSION=vX.Y.Z           version of the release
#   REGISTRY=NAME            registry in the name of the image
#   ARCHITECTURES="amd64 …"  architectures, by default all
# See docs/releasing.md.
set -euo pipefail
cd "$(dirname "$0")/.."
REGISTRY=${REGISTRY:-registry.example.com}
[[ ${VERSION:-} =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "set VERSION to a version such as v0.2.0, not \"${VERSION:-}\"" >&2 && exit 1; }
[ -z "$(git status --porcelain)" ] || { echo "commit or remove the changes in this checkout: a release has only committed source" >&2 && exit 1; }
export VERSION ARCHITECTURES=${ARCHITECTURES:-amd64 arm64 s390x ppc64le riscv64}

out=bin/release/$VERSION
rm -rf "$out" "$out.part" bin/plugin
mkdir -p "$out.part"
IMAGE=$REGISTRY/kube-nftproxy:$VERSION SBOMS=$out.part PUSH='' hack/image.sh
cp bin/image/kube-nftproxy.tar "$out.part/kube-nftproxy-image.tar"
for arch in $ARCHITECTURES; do
  cp "bin/image/$arch/kube-nftproxy" "$out.part/kube-nftproxy-linux-$arch"
done
hack/plugin.sh
cp bin/plugin/*.tar.gz bin/plugin/nftproxy.yaml "$out.part/"
(cd "$out.part" && LC_ALL=C sha256sum -- * >../SHA256SUMS.part && mv ../SHA256SUMS.part SHA256SUMS)
mv "$out.part" "$out"
hack/release-verify.sh "$out"
