#!/usr/bin/env bash
# Builds the files of a release in bin/release/$VERSION: the image for all architectures, and for each one the program, its SBOM, its notices, and packages for
# Debian and RPM; the kubectl plugin and its manifest for krew; the chart, also as an OCI artifact; the manifests, manual pages and completions; a statement of
# the provenance; the checksums of all. They depend only on the source and the Go version. The two signatures differ each time.
#   VERSION=vX.Y.Z           version of the release
#   REGISTRY=NAME            registry in the name of the image
#   ARCHITECTURES="amd64 …"  architectures, by default all
#   PLATFORMS="linux/amd64 …" platforms of the kubectl plugin, by default all
#   KEY=FILE                 private key (PEM, ECDSA P-256) that signs the checksums and the provenance; without it, nothing is signed
# See docs/releasing.md.
set -euo pipefail
cd "$(dirname "$0")/.."
REGISTRY=${REGISTRY:-registry.example.com} # the only place with the registry of the project
[[ ${VERSION:-} =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "set VERSION to a version such as v0.2.0, not \"${VERSION:-}\"" >&2 && exit 1; }
[ -z "$(git status --porcelain)" ] || { echo "commit or remove the changes in this checkout: a release has only committed source" >&2 && exit 1; }
export VERSION ARCHITECTURES=${ARCHITECTURES:-amd64 arm64 s390x ppc64le riscv64}
# Settings of the builder's that would get into the files.
umask 022
SOURCE_DATE_EPOCH=$(git show --no-patch --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C GOFLAGS= GOEXPERIMENT= GOFIPS140=off GOAMD64=v1 GOARM64=v8.0 GOWORK=off

out=bin/release/$VERSION
rm -rf "$out" "$out.part" bin/plugin
mkdir -p "$out.part"
IMAGE=$REGISTRY/kube-nftproxy:$VERSION DOCUMENTS=$out.part PUSH='' hack/image.sh
cp bin/image/kube-nftproxy.tar "$out.part/kube-nftproxy-image.tar"
for arch in $ARCHITECTURES; do
  cp "bin/image/$arch/kube-nftproxy" "$out.part/kube-nftproxy-linux-$arch"
done
hack/plugin.sh
cp bin/plugin/*.tar.gz bin/plugin/nftproxy.yaml "$out.part/"

# archive FOLDER NAME FILE makes an archive of a folder with the given name. All of its files have the time of the commit.
archive() {
  tar --create --dereference --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --transform "s|^\.|$2|" --directory "$1" . | gzip -n >"$3"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD deploy | tar --extract --directory "$work"
chart=$work/chart
mv "$work/deploy/chart" "$chart"
hack/chart-annotations.sh "${VERSION#v}" "$REGISTRY/kube-nftproxy:$VERSION" >>"$chart/Chart.yaml"
sed -i "s/^version: .*/version: ${VERSION#v}/; s/^appVersion: .*/appVersion: $VERSION/" "$chart/Chart.yaml"
sed -i "s|^  repository: .*|  repository: $REGISTRY/kube-nftproxy|" "$chart/values.yaml"
sed -i "s|newName: IMAGE|newName: $REGISTRY/kube-nftproxy|; s|newTag: dev|newTag: $VERSION|" "$work/deploy/base/kustomization.yaml"
sed -i "s|image: IMAGE|image: $REGISTRY/kube-nftproxy:$VERSION|" "$work/deploy/kubeadm/hardened.yaml"
archive "$chart" kube-nftproxy "$out.part/kube-nftproxy-${VERSION#v}.tgz"
bin/image/make -chart "$out.part/kube-nftproxy-${VERSION#v}.tgz" -epoch "$SOURCE_DATE_EPOCH" -output "$out.part/kube-nftproxy-chart-oci.tar"
archive "$work/deploy" deploy "$out.part/kube-nftproxy-manifests.tar.gz"
hack/build.sh
mkdir "$work/completions" "$work/man" "$work/man8"
for shell in bash fish powershell zsh; do bin/kube-nftproxy completion $shell >"$work/completions/kube-nftproxy.$shell"; done
archive "$work/completions" completions "$out.part/kube-nftproxy-completions.tar.gz"
go run ./hack/man "$VERSION" "$work/man"
archive "$work/man" man "$out.part/kube-nftproxy-man.tar.gz"
for page in "$work"/man/*.8; do gzip -n <"$page" >"$work/man8/${page##*/}.gz"; done
go build -C hack/tools/nfpm -o "$PWD/bin/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
for arch in $ARCHITECTURES; do
  for packager in deb rpm; do
    ARCH=$arch VERSION=${VERSION#v} FILES=$out.part WORK=$work bin/nfpm package --config hack/nfpm.yaml --packager $packager --target "$out.part/kube-nftproxy-linux-$arch.$packager"
  done
done

# The provenance: an in-toto statement with the predicate of SLSA v1.
(cd "$out.part" && sha256sum -- *) | jq --raw-input --slurp --arg commit "$(git rev-parse HEAD)" --arg go "$(go env GOVERSION)" --arg version "$VERSION" --arg architectures "$ARCHITECTURES" --arg registry "$REGISTRY" \
  --argjson epoch "$SOURCE_DATE_EPOCH" '{
    _type: "https://in-toto.io/Statement/v1",
    subject: [split("\n")[] | select(. != "") | {name: .[66:], digest: {sha256: .[:64]}}],
    predicateType: "https://slsa.dev/provenance/v1",
    predicate: {
      buildDefinition: {
        buildType: "https://github.com/kube-nftproxy/kube-nftproxy/blob/main/docs/releasing.md",
        externalParameters: {version: $version, registry: $registry, architectures: ($architectures | split(" "))},
        resolvedDependencies: [
          {uri: "git+https://github.com/kube-nftproxy/kube-nftproxy", digest: {gitCommit: $commit}},
          {uri: "https://go.dev/dl/", name: $go}
        ]
      },
      runDetails: {builder: {id: "https://github.com/kube-nftproxy/kube-nftproxy/blob/main/hack/release.sh"}, metadata: {startedOn: ($epoch | todate)}}
    }
  }' >"$work/provenance" && mv "$work/provenance" "$out.part/provenance.intoto.json"
(cd "$out.part" && sha256sum -- * >../SHA256SUMS.part && mv ../SHA256SUMS.part SHA256SUMS)
sign() { openssl dgst -sha256 -sign "$KEY" | base64 --wrap 0; }
if [ -n "${KEY:-}" ]; then
  sign <"$out.part/SHA256SUMS" >"$out.part/SHA256SUMS.sig"
  # The same statement in a signed envelope (DSSE), the form that cosign and policy engines verify.
  statement=$out.part/provenance.intoto.json
  signature=$({ printf 'DSSEv1 28 application/vnd.in-toto+json %d ' "$(wc -c <"$statement")" && cat "$statement"; } | sign)
  base64 --wrap 0 "$statement" | jq --compact-output --raw-input --arg sig "$signature" \
    '{payloadType: "application/vnd.in-toto+json", payload: ., signatures: [{sig: $sig}]}' >"$out.part/provenance.intoto.jsonl"
fi
rm -rf "$out" && mv "$out.part" "$out"
public=
if [ -n "${KEY:-}" ]; then public=$work/public.pem && openssl pkey -in "$KEY" -pubout -out "$public"; fi
PUBLIC_KEY=$public hack/release-verify.sh "$out"
