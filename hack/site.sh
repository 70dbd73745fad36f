#!/usr/bin/env bash
# Writes the pages as a site into bin/site: README.md and the other pages of the root, docs/, and the README.md of deploy/ and test/. Hugo
# makes it, with hack/site. The first run builds Hugo, which takes minutes. Usage: hack/site.sh
set -euo pipefail
cd "$(dirname "$0")/.."
version=v0.164.0
hugo=$PWD/bin/hugo/$version
[ -x "$hugo/hugo" ] || GOBIN=$hugo CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "github.com/gohugoio/hugo@$version"
rm -rf bin/site
HUGO_PARAMS_VERSION=$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)
export HUGO_PARAMS_VERSION
"$hugo/hugo" --config hack/site/hugo.toml --cacheDir "$PWD/bin/hugo/cache" --noBuildLock --panicOnWarning --logLevel warn
