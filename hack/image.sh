#!/usr/bin/env bash
# Makes bin/image/kube-nftproxy.tar, an OCI image for several architectures. It needs Go and nothing else. Its last line is the
# image's digest, which is the same for everybody who builds the same source with the same Go and the same variables. See
# docs/image.md.
#   VERSION=TEXT             what --version prints and the image is labelled with, by default what git tells
#   SOURCE_DATE_EPOCH=N      the time of everything in the image, by default that of the commit
#   REVISION=COMMIT          the commit that the image is labelled with, by default what git tells
#   IMAGE=NAME:TAG           by which the tar file is loaded, kube-nftproxy:$VERSION by default
#   ARCHITECTURES="amd64 …"  for which, by default amd64 and arm64
#   PUSH=REGISTRY/NAME:TAG   pushes it too, with the credentials of docker login
set -euo pipefail
cd "$(dirname "$0")/.."
export VERSION=${VERSION:-$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)}
revision=${REVISION:-$(git rev-parse HEAD 2>/dev/null || true)}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

# Settings of the builder's that would get into the program.
export GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 GOWORK=off

mkdir -p bin/image
go build -C hack/image -o ../../bin/image/make . # first: it is done sooner, and may fail as well
programs=()
for arch in ${ARCHITECTURES:-amd64 arm64}; do
  GOOS=linux GOARCH=$arch BINARY=bin/image/$arch/kube-nftproxy hack/build.sh
  programs+=("bin/image/$arch/kube-nftproxy")
done
bin/image/make -version "$VERSION" -revision "$revision" -epoch "$epoch" -image "${IMAGE:-kube-nftproxy:$VERSION}" \
  -output bin/image/kube-nftproxy.tar -push "${PUSH:-}" "${programs[@]}"
