#!/usr/bin/env bash
# Verifies a release from its files alone: the checksums, the names of all files, and that the files agree with each other. With PUBLIC_KEY=FILE (PEM), it
# also verifies the signatures of the checksums and of the provenance. It needs jq, dpkg-deb and rpm, and openssl for a signature. It runs no program of the release.
# Usage: hack/release-verify.sh [FOLDER], by default bin/release/$VERSION
set -euo pipefail
export LC_ALL=C
fail() { echo "release-verify: $*" >&2 && exit 1; }
for program in jq dpkg-deb rpm; do command -v $program >/dev/null || fail "$program is not installed"; done
key=${PUBLIC_KEY:+$(realpath "$PUBLIC_KEY")}
cd "${1:-$(dirname "$0")/../bin/release/${VERSION:?set VERSION, or name the folder}}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# sha256sum follows links and accepts files of other folders.
[ -z "$(find . -mindepth 1 ! -type f)" ] || fail "not a regular file: $(find . -mindepth 1 ! -type f)"
if [ -n "$key" ]; then
  openssl dgst -sha256 -verify "$key" -signature <(base64 --decode SHA256SUMS.sig) SHA256SUMS >&2 || fail "SHA256SUMS.sig is not the signature of SHA256SUMS by $key"
  envelope() { jq --exit-status --raw-output "$1" provenance.intoto.jsonl; }
  envelope .payload | base64 --decode | cmp - provenance.intoto.json >&2 || fail "provenance.intoto.jsonl has another statement"
  { printf 'DSSEv1 28 application/vnd.in-toto+json %d ' "$(wc -c <provenance.intoto.json)" && cat provenance.intoto.json; } |
    openssl dgst -sha256 -verify "$key" -signature <(envelope '.signatures[0].sig' | base64 --decode) >&2 ||
    fail "provenance.intoto.jsonl has no signature by $key"
fi
files() { find . -type f ! -path ./SHA256SUMS ! -path ./SHA256SUMS.sig ! -path ./provenance.intoto.jsonl -printf '%P\n' | sort; }
diff <(files) <(cut -c 67- SHA256SUMS) >&2 || fail "the files differ from the list in SHA256SUMS"
sha256sum --check --strict --quiet SHA256SUMS
sum() { if [ $# -gt 0 ]; then sha256sum "$1"; else sha256sum; fi | cut -d ' ' -f 1; }

provenance() { jq --exit-status --raw-output "$@" provenance.intoto.json; }
version=$(provenance .predicate.buildDefinition.externalParameters.version)
registry=$(provenance .predicate.buildDefinition.externalParameters.registry)
architectures=$(provenance '.predicate.buildDefinition.externalParameters.architectures | join(" ")')
[[ "$version $architectures" =~ ^v[0-9.]+( [a-z0-9]+)+$ ]] || fail "provenance.intoto.json: version $version, architectures $architectures"
provenance '._type == "https://in-toto.io/Statement/v1" and .predicateType == "https://slsa.dev/provenance/v1" and
  any(.predicate.buildDefinition.resolvedDependencies[]; .digest.gitCommit // "" | test("^[0-9a-f]{40}$"))' >/dev/null || fail "provenance.intoto.json names no commit"
diff <(provenance '.subject[] | .digest.sha256 + "  " + .name') <(grep -v '  provenance.intoto.json$' SHA256SUMS) >&2 || fail "provenance.intoto.json names other files"

plugins=$(sed -n 's|^ *uri: .*/||p' nftproxy.yaml)
[ -n "$plugins" ] || fail "nftproxy.yaml names no plugin"
chart=kube-nftproxy-${version#v}.tgz
{
  printf '%s\n' "$chart" kube-nftproxy-{chart-oci.tar,image.tar,completions.tar.gz,man.tar.gz,manifests.tar.gz} nftproxy.yaml provenance.intoto.json $plugins
  for arch in $architectures; do printf "kube-nftproxy-linux-$arch%s\n" "" .deb .notices.txt .rpm .spdx.json; done
} | sort | diff <(files) - >&2 || fail "these are not the files of a release for $architectures"

# layout ARCHIVE: unpacks an OCI layout into a folder in $work; the digest of each blob must be its name.
layout() {
  mkdir "$work/$1" && tar --extract --file "$1" --directory "$work/$1"
  (cd "$work/$1/blobs/sha256" && sha256sum -- * | awk '$1 != $2 { print "blob " $2 " has the digest " $1; bad = 1 } END { exit bad }') || fail "$1 has a changed blob"
}
blob() { cat "$work/$1/blobs/sha256/${2#sha256:}"; }

declare -A machines=([amd64]=3e00 [arm64]=b700 [s390x]=0016 [ppc64le]=1500 [riscv64]=f300) # of ELF
declare -A debian=([ppc64le]=ppc64el) rpm=([amd64]=x86_64 [arm64]=aarch64)
installed="/usr/bin/kube-nftproxy
/usr/share/bash-completion/completions/kube-nftproxy
/usr/share/doc/kube-nftproxy/THIRD-PARTY-NOTICES
/usr/share/doc/kube-nftproxy/copyright
/usr/share/fish/vendor_completions.d/kube-nftproxy.fish"
layout kube-nftproxy-image.tar
index=$(jq -r '.manifests | if length == 1 then .[0].digest else error("not one index") end' "$work/kube-nftproxy-image.tar/index.json")
[ "$(jq -r '.manifests[0].annotations["io.containerd.image.name"]' "$work/kube-nftproxy-image.tar/index.json")" = "$registry/kube-nftproxy:$version" ] || fail "the image has another name"
[ "$(blob kube-nftproxy-image.tar "$index" | jq -r '[.manifests[].platform | .os + "/" + .architecture] | join(" ")')" = "$(printf ' linux/%s' $architectures | cut -c 2-)" ] || fail "the image has other platforms"
pages=$(tar --list --gzip --file kube-nftproxy-man.tar.gz | sed -n 's|^man/\(.*\.8\)$|/usr/share/man/man8/\1.gz|p')
[ -n "$pages" ] || fail "there are no manual pages"

for arch in $architectures; do
  program=kube-nftproxy-linux-$arch digest=$(sum "kube-nftproxy-linux-$arch")
  [ "$(od -An -tx1 -j18 -N2 "$program" | tr -d ' ')" = "${machines[$arch]}" ] || fail "$program is a program for another architecture"
  jq --exit-status --arg name "kube-nftproxy $version linux/$arch" --arg version "$version" --arg digest "$digest" '.spdxVersion == "SPDX-2.3" and .name == $name and
    (.packages[0] | .versionInfo == $version and .checksums == [{algorithm: "SHA256", checksumValue: $digest}]) and
    (.packages | length > 10 and all(.name != "" and .versionInfo != "" and (.licenseConcluded | . != "" and . != "NOASSERTION")))' "$program.spdx.json" >/dev/null || fail "$program.spdx.json is not the SBOM of $program"
  jq -r '.packages[] | .name + " " + .versionInfo' "$program.spdx.json" | diff - <(sed '1,2d; /^$/,$d' "$program.notices.txt" | awk '{ print $1 " " $2 }') >&2 || fail "$program.notices.txt names other modules than the SBOM"

  manifest=$(blob kube-nftproxy-image.tar "$index" | jq -r --arg arch "$arch" '.manifests[] | select(.platform.architecture == $arch).digest')
  [ "$(blob kube-nftproxy-image.tar "$(blob kube-nftproxy-image.tar "$manifest" | jq -r .config.digest)" | jq -r .architecture)" = "$arch" ] || fail "the image for $arch says that it is for another architecture"
  blob kube-nftproxy-image.tar "$(blob kube-nftproxy-image.tar "$manifest" | jq -r '.layers[0].digest')" | tar --extract --gzip --to-stdout usr/local/bin/kube-nftproxy | sum | grep -qx "$digest" || fail "the image for $arch has another program"

  deb=$program.deb
  [ "$(dpkg-deb --showformat '${Package} ${Version} ${Architecture}' --show "$deb")" = "kube-nftproxy ${version#v}-1 ${debian[$arch]:-$arch}" ] || fail "$deb has another name, version or architecture"
  dpkg-deb --fsys-tarfile "$deb" | tar --extract --to-stdout ./usr/bin/kube-nftproxy | sum | grep -qx "$digest" || fail "$deb has another program"
  diff <(dpkg-deb --fsys-tarfile "$deb" | tar --list | sed -n 's|^\.\(/.*[^/]\)$|\1|p' | sort) <(printf '%s\n' "$installed" "$pages" /usr/share/zsh/vendor-completions/_kube-nftproxy | sort) >&2 || fail "$deb has other files"
  # The header of a package has the digests of its files, and rpm -K compares the digest of all of them together.
  rpm --checksig --nosignature --quiet "$program.rpm" >&2 || fail "$program.rpm is damaged"
  [ "$(rpm --query --package --nosignature --queryformat '%{NAME} %{VERSION} %{ARCH}' "$program.rpm")" = "kube-nftproxy ${version#v} ${rpm[$arch]:-$arch}" ] || fail "$program.rpm has another name, version or architecture"
  rpm --query --package --nosignature --queryformat '[%{FILENAMES} %{FILEDIGESTS}\n]' "$program.rpm" >"$work/rpm"
  grep -qx "/usr/bin/kube-nftproxy $digest" "$work/rpm" || fail "$program.rpm has another program"
  diff <(cut -d ' ' -f 1 "$work/rpm" | sort) <(printf '%s\n' "$installed" "$pages" /usr/share/doc/kube-nftproxy /usr/share/zsh/site-functions/_kube-nftproxy | sort) >&2 || fail "$program.rpm has other files"
done

# within ARCHIVE FILE LINE: a file in an archive has a line.
within() { tar --extract --gzip --to-stdout --file "$1" "$2" | grep -qxF -- "$3" || fail "$2 in $1 has no line \"$3\""; }
within "$chart" kube-nftproxy/Chart.yaml "version: ${version#v}"
tar --extract --gzip --to-stdout --file "$chart" kube-nftproxy/Chart.yaml | grep -q "^appVersion: $version\( \|\$\)" || fail "the chart has another appVersion"
within "$chart" kube-nftproxy/values.yaml "  repository: $registry/kube-nftproxy"
within kube-nftproxy-manifests.tar.gz deploy/base/kustomization.yaml "    newName: $registry/kube-nftproxy"
within kube-nftproxy-manifests.tar.gz deploy/base/kustomization.yaml "    newTag: $version"
within kube-nftproxy-manifests.tar.gz deploy/kubeadm/hardened.yaml "          image: $registry/kube-nftproxy:$version"
layout kube-nftproxy-chart-oci.tar
manifest=$(jq -r '.manifests | if length == 1 then .[0].digest else error("not one artifact") end' "$work/kube-nftproxy-chart-oci.tar/index.json")
blob kube-nftproxy-chart-oci.tar "$manifest" | jq --exit-status --arg digest "sha256:$(sum "$chart")" '.config.mediaType == "application/vnd.cncf.helm.config.v1+json" and
  (.layers | length == 1 and .[0].mediaType == "application/vnd.cncf.helm.chart.content.v1.tar+gzip" and .[0].digest == $digest)' >/dev/null || fail "kube-nftproxy-chart-oci.tar is not the artifact of $chart"
for plugin in $plugins; do
  grep -A 1 "uri: .*/$version/$plugin\$" nftproxy.yaml | grep -qx " *sha256: $(sum "$plugin")" || fail "nftproxy.yaml has another checksum of $plugin"
done
echo "verified: $version for $architectures: $(wc -l <SHA256SUMS) files have the checksums in SHA256SUMS, $(sum SHA256SUMS)"
