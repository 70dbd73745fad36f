#!/usr/bin/env bash
# Builds bin/kube-nftproxy: static, without paths of this machine, and with the version that git tells.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(git describe --tags --always --dirty 2>/dev/null || echo dev)
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$version" -o bin/kube-nftproxy ./cmd/kube-nftproxy
echo "bin/kube-nftproxy: $version"
