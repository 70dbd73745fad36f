#!/usr/bin/env bash
# Builds a static program. Builds with the same Go version have the same bytes.
#   COMMAND=NAME    a folder in cmd/, kube-nftproxy by default
#   BINARY=FILE     output file, bin/$COMMAND by default
#   VERSION=TEXT    text of --version, by default from git
#   GOARCH, GOOS    target platform, as for go build
set -euo pipefail
cd "$(dirname "$0")/.."
command=${COMMAND:-kube-nftproxy}
binary=${BINARY:-bin/$command}
version=${VERSION:-$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)}
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" -o "$binary" ./cmd/$command
echo "$binary: $version"
