#!/usr/bin/env bash
# Unpacks packages of any of Debian's suites into folders, from the archive that the machine is configured for. Sourced by
# hack/vm.sh, nfts.sh, conformance.sh and neighbours.sh, which set $cache: the folder for lists of packages.
set -euo pipefail
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
PATH=$PATH:/usr/sbin:/sbin

# aptof SUITE COMMAND...: apt-get, or apt-cache, with lists of that suite only, as if nothing were installed.
aptof() {
  local suite=$1 dir=$cache/apt/$1 uri keyring
  shift
  uri=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -n 's/^URIs: *\([^ ]*\).*/\1/p' | head -1)
  # Machines that an installer has made have a line "deb [options] URI suite component...".
  [ -n "$uri" ] || uri=$(sed -n 's/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list | head -1)
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/archives/partial"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$uri" "$suite" "$keyring" \
    >"$dir/sources/$suite.sources"
  "apt-$1" -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$dir/sources" -o Dir::State::Lists="$dir/lists" \
    -o Dir::Cache="$dir" -o Dir::State::Status=/dev/null -o APT::Sandbox::User=root "${@:2}"
}

# lists SUITE: downloads the package lists of a suite, unless they exist.
lists() { [ -n "$(ls "$cache/apt/$1/lists" 2>/dev/null | grep Packages)" ] || aptof "$1" get update; }

# unpack FOLDER: unpacks all packages that are in a folder into it, and deletes them.
unpack() {
  local deb
  for deb in "$1"/*.deb; do
    dpkg-deb -x "$deb" "$1"
    rm "$deb"
  done
}

# system SUITE FOLDER PACKAGE...: unpacks packages with their dependencies into a new folder, whose /usr is merged. No script of a package runs.
system() {
  local suite=$1 folder=$2 dir
  shift 2
  lists "$suite"
  aptof "$suite" get install --yes --no-install-recommends --download-only "$@" >/dev/null
  rm -rf "$folder"
  mkdir -p "$folder"
  mv "$cache/apt/$suite"/archives/*.deb "$folder/"
  unpack "$folder"
  for dir in bin lib lib64 sbin; do
    [ ! -L "$folder/$dir" ] || continue # from the package base-files
    mkdir -p "$folder/$dir" "$folder/usr/$dir"
    cp -a "$folder/$dir/." "$folder/usr/$dir/"
    rm -r "${folder:?}/$dir"
    ln -s "usr/$dir" "$folder/$dir"
  done
}

# fetch SUITE FOLDER PACKAGE...: unpacks packages, without their dependencies, unless the folder exists.
fetch() {
  local suite=$1 folder=$2
  shift 2
  [ ! -d "$folder" ] || return 0
  lists "$suite"
  rm -rf "$folder.part"
  mkdir -p "$folder.part"
  (cd "$folder.part" && aptof "$suite" get download "$@")
  unpack "$folder.part"
  mv "$folder.part" "$folder"
}
