#!/usr/bin/env bash
# Builds the program: static, and the same bytes wherever and whenever it is built with the same Go.
#   BINARY=FILE     where it goes, bin/kube-nftproxy by default
#   VERSION=TEXT    what --version prints, by default what git tells
#   GOARCH, GOOS    for which machines, as for go build
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${BINARY:-bin/kube-nftproxy}
version=${VERSION:-$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)}
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" -o "$binary" ./cmd/kube-nftproxy
echo "$binary: $version"
