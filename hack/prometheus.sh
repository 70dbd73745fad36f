#!/usr/bin/env bash
# Fetches prometheus and promtool, Debian's package, into bin/prometheus, without installing it: an installed one starts a
# server. It does nothing if they exist. Usage: hack/prometheus.sh
set -euo pipefail
cd "$(dirname "$0")/.."
bin=bin/prometheus
[ -x $bin/prometheus ] && [ -x $bin/promtool ] && exit 0
command -v apt-get >/dev/null || { echo "prometheus: apt-get is missing: copy prometheus and promtool to $bin" >&2 && exit 1; }
mkdir -p $bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() { (cd "$work" && apt-get download --quiet=2 prometheus >/dev/null 2>"$work/errors"); }
fetch || { apt-get update --quiet=2 && fetch; } || { cat "$work/errors" >&2 && exit 1; }
dpkg-deb --extract "$work"/prometheus_*.deb "$work/package"
mv "$work"/package/usr/bin/{prometheus,promtool} $bin/
