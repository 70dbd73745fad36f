#!/usr/bin/env bash
# Builds bin/image/kube-nftproxy.tar, an OCI image for several architectures. It needs Go and nothing else. Its last line is the
# image's digest, which depends only on the source, the Go version and these variables. See
# docs/releasing.md.
#   VERSION=TEXT             text of --version and label of the image, by default from git
#   SOURCE_DATE_EPOCH=N      time of all files in the image, by default the time of the commit
#   REVISION=COMMIT          commit in the label of the image, by default from git
#   IMAGE=NAME:TAG           name of the image in the tar file, kube-nftproxy:$VERSION by default
#   ARCHITECTURES="amd64 …"  architectures, by default amd64 and arm64
#   DOCUMENTS=FOLDER         also writes the SBOM and the notices of each architecture into this folder
#   PUSH=REGISTRY/NAME:TAG   also pushes the image, with the credentials of docker login
set -euo pipefail
cd "$(dirname "$0")/.."
export VERSION=${VERSION:-$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)}
revision=${REVISION:-$(git rev-parse HEAD 2>/dev/null || true)}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

# Settings of the builder's that would get into the program.
export GOFLAGS=-buildvcs=false GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 GOWORK=off

mkdir -p bin/image
go build -C hack/image -o ../../bin/image/make . # first: it is done sooner, and may fail as well
programs=()
for arch in ${ARCHITECTURES:-amd64 arm64}; do
  GOOS=linux GOARCH=$arch BINARY=bin/image/$arch/kube-nftproxy hack/build.sh
  programs+=("bin/image/$arch/kube-nftproxy")
done
bin/image/make -version "$VERSION" -revision "$revision" -epoch "$epoch" -image "${IMAGE:-kube-nftproxy:$VERSION}" \
  -output bin/image/kube-nftproxy.tar -push "${PUSH:-}" -documents "${DOCUMENTS:-}" "${programs[@]}"
