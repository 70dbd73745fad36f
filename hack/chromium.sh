#!/usr/bin/env bash
# Downloads Debian's packages of Chromium, and its missing dependencies, into bin/chromium, without installing them, and
# writes the program bin/chromium/start. It does nothing if that program exists. The packages with Chromium's own files have to be named, so that
# they are downloaded also on a machine that has them. Usage: hack/chromium.sh
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/bin/chromium
[ -x "$dir/start" ] && exit 0
command -v apt-get >/dev/null || { echo "chromium: apt-get is missing: create a program $dir/start that starts Chromium" >&2 && exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/partial" "$work/root"
fetch() {
  apt-get install --quiet=2 --yes --no-install-recommends --reinstall --download-only -o Debug::NoLocking=true \
    -o Dir::Cache::archives="$work" chromium chromium-common >/dev/null 2>"$work/errors"
}
fetch || { apt-get update --quiet=2 && fetch; } || { cat "$work/errors" >&2 && exit 1; }
for package in "$work"/*.deb; do dpkg-deb --extract "$package" "$work/root"; done
rm -rf "$dir" && mkdir -p "$(dirname "$dir")" && mv "$work/root" "$dir"
libraries=$(find "$dir/usr/lib" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
cat >"$dir/start.new" <<END
#!/bin/sh
LD_LIBRARY_PATH=$libraries exec $dir/usr/lib/chromium/chromium "\$@"
END
chmod +x "$dir/start.new" && mv "$dir/start.new" "$dir/start"
