#!/usr/bin/env bash
# Builds the kubectl plugin as archives bin/plugin/kubectl-nftproxy-OS-ARCH.tar.gz, and its manifest for krew,
# bin/plugin/nftproxy.yaml, with their checksums. Builds with the same Go version have the same bytes.
#   VERSION=vX.Y.Z             version in the manifest, v0.0.0 by default
#   PLATFORMS="linux/amd64 …"  platforms, by default linux, darwin and windows, each for amd64 and arm64
set -euo pipefail
cd "$(dirname "$0")/.."
export VERSION=${VERSION:-v0.0.0} COMMAND=kubectl-nftproxy
mkdir -p bin/plugin
{
  sed "s/VERSION/$VERSION/" deploy/kubectl/nftproxy.yaml
  for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}; do
    os=${platform%/*} arch=${platform#*/}
    bin=kubectl-nftproxy
    [ "$os" != windows ] || bin+=.exe
    archive=kubectl-nftproxy-$os-$arch.tar.gz
    folder=bin/plugin/$os-$arch
    mkdir -p "$folder"
    GOOS=$os GOARCH=$arch BINARY=$folder/$bin hack/build.sh >&2
    cp LICENSE "$folder/"
    tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --directory "$folder" "$bin" LICENSE | gzip -n >"bin/plugin/$archive"
    cat <<TEXT
    - selector: {matchLabels: {os: $os, arch: $arch}}
      uri: https://github.com/kube-nftproxy/kube-nftproxy/releases/download/$VERSION/$archive
      sha256: $(sha256sum "bin/plugin/$archive" | cut -d ' ' -f 1)
      bin: $bin
TEXT
  done
} >bin/plugin/nftproxy.yaml
