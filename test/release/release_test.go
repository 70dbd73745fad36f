//go:build release

package release

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	repository = "../.."
	// example is the version of the releases that the tests build.
	example = "v9.9.9"
)

// shell runs a script of bash in a folder, with more variables.
func shell(ctx context.Context, dir, script string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-O", "extglob", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

func mustShell(t *testing.T, dir, script string, env ...string) string {
	t.Helper()
	out, err := shell(t.Context(), dir, script, env...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// commit copies the source, with its uncommitted changes, into a repository with one commit. Each copy has the same commit.
func commit(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	mustShell(t, repository, `git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ ! -e "$f" ] && [ ! -L "$f" ] || printf '%s\0' "$f"; done |
tar --create --null --no-recursion --files-from=- | tar --extract --directory "$TO"`, "TO="+dir)
	mustShell(t, dir, `git init --quiet --initial-branch=main
git add --all
git -c user.name=test -c user.email=test@example.com commit --quiet --no-verify --message=release --date=@1700000000`, "GIT_COMMITTER_DATE=@1700000000")
	return dir
}

// keys makes a pair of keys, as docs/releasing.md does.
func keys(t *testing.T) (private, public string) {
	t.Helper()
	dir := t.TempDir()
	mustShell(t, dir, "openssl ecparam -name prime256v1 -genkey -noout -out key.pem; openssl pkey -in key.pem -pubout -out key.pub")
	return filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.pub")
}

// build builds a release in a copy of the source, which also verifies it, and returns its folder.
func build(t *testing.T, settings string, env ...string) string {
	t.Helper()
	dir := commit(t)
	out := mustShell(t, dir, settings+"; exec make release VERSION="+example, env...)
	if !strings.Contains(out, "verified: "+example+" for ") {
		t.Fatalf("the release is not verified:\n%s", out)
	}
	return filepath.Join(dir, "bin/release", example)
}

// given returns the folder of a release that is built already, which the variable RELEASE names, and its key, PUBLIC_KEY; otherwise "".
func given(t *testing.T) (dir, public string) {
	t.Helper()
	dir, public = os.Getenv("RELEASE"), os.Getenv("PUBLIC_KEY")
	if dir != "" && (!filepath.IsAbs(dir) || !filepath.IsAbs(public)) {
		t.Fatal("set RELEASE and PUBLIC_KEY to absolute paths")
	}
	return dir, public
}

func versionOf(t *testing.T, dir string) string {
	t.Helper()
	return mustShell(t, dir, "jq -r .predicate.buildDefinition.externalParameters.version provenance.intoto.json")
}

// verify runs hack/release-verify.sh.
func verify(ctx context.Context, dir, public string) (string, error) {
	return shell(ctx, repository, `hack/release-verify.sh "$DIR"`, "DIR="+dir, "PUBLIC_KEY="+public)
}

// reseal repeats the last steps of a release after a change of its files, as an attacker can who has no key.
const reseal = `
new=$(sha256sum -- !(SHA256SUMS*|provenance*) | jq -Rn --slurpfile p provenance.intoto.json '$p[0] + {subject: [inputs | {name: .[66:], digest: {sha256: .[:64]}}]}')
echo "$new" >provenance.intoto.json
new=$(sha256sum -- !(SHA256SUMS*|*.jsonl))
echo "$new" >SHA256SUMS`

// repack changes a file in a layer of files: an archive is unpacked, a script runs in its folder, and the archive is replaced.
const repack = `
repack() {
  mkdir x
  tar -xf "$1" -C x
  cd x
  eval "$2"
  cd ..
  rm "$1"
  case $1 in *gz) tar -czf "$1" -C x . --transform 's|^\./||' ;; *) tar -cf "$1" -C x . --transform 's|^\./||' ;; esac
  rm -r x
}
# blobs gives each blob of an OCI layout the name of its digest, and changes the references to it, up to the index.
blobs() {
  local changed=1 b s
  while [ $changed = 1 ]; do
    changed=0
    for b in blobs/sha256/*; do
      s=$(sha256sum "$b" | cut -d ' ' -f 1)
      [ "${b##*/}" != "$s" ] || continue
      mv "$b" "blobs/sha256/$s" && grep -lr "${b##*/}" index.json blobs | xargs -r sed -i "s/${b##*/}/$s/g"
      changed=1
    done
  done
}
`

// A change of a release with the program for amd64, and the complaint about it.
type change struct{ name, script, want string }

// incomplete are changes that leave the checksums as they are.
var incomplete = []change{
	{"changed file", "rm LINUX; echo changed >LINUX", "FAILED"},
	{"added file", "echo added >c", "differ from the list"},
	{"missing file", "rm nftproxy.yaml", "differ from the list"},
	{"added link", "ln -s nftproxy.yaml c", "not a regular file"},
	{"no checksums", "rm SHA256SUMS; touch SHA256SUMS", "differ from the list"},
	{"invalid line", "echo x >>SHA256SUMS", "differ from the list"},
	{"second checksum", "tail -1 SHA256SUMS >>SHA256SUMS", "differ from the list"},
}

// unsigned are changes that only a signature detects.
var unsigned = []change{
	{"changed after the signature", "rm nftproxy.yaml; echo >nftproxy.yaml" + reseal, "is not the signature"},
	{"no signature", "rm SHA256SUMS.sig", "is not the signature"},
	{"envelope of another statement", `jq -c '.payload = "e30="' provenance.intoto.jsonl >x; mv x provenance.intoto.jsonl`,
		"another statement"},
	{"envelope without a signature", `jq -c '.signatures = []' provenance.intoto.jsonl >x; mv x provenance.intoto.jsonl`,
		"has no signature"},
}

// consistent are changes after which all checksums are right.
var consistent = []change{
	{"file of no release", "echo x >notes.txt", "not the files of a release"},
	{"no package", "rm LINUX.deb", "not the files of a release"},
	{"another program", "printf x >>LINUX", "not the SBOM of"},
	{"program of another architecture", `printf '\xb7' | dd of=LINUX bs=1 seek=18 conv=notrunc status=none`, "another architecture"},
	{"SBOM without licenses", `jq '.packages[3].licenseConcluded = "NOASSERTION"' LINUX.spdx.json >x; mv x LINUX.spdx.json`, "not the SBOM of"},
	{"SBOM with an additional module", `jq '.packages[3].name = "example.com/x"' LINUX.spdx.json >x; mv x LINUX.spdx.json`, "other modules"},
	{"image with another program", `repack kube-nftproxy-image.tar 'layer=$(for b in blobs/sha256/*; do jq -r ".layers[0].digest[7:] // empty" $b 2>/dev/null || true; done | head -1)
mkdir y; tar -xzf blobs/sha256/$layer -C y; echo x >>y/usr/local/bin/kube-nftproxy; tar -czf blobs/sha256/$layer -C y usr; rm -r y; blobs'`, "has another program"},
	{"image with a changed blob", `repack kube-nftproxy-image.tar 'for b in blobs/sha256/*; do echo >>$b; break; done'`, "changed blob"},
	{"image for another platform", `repack kube-nftproxy-image.tar 'sed -i "s/\"architecture\":\"amd64\"/\"architecture\":\"arm64\"/" $(grep -l manifests blobs/sha256/*); blobs'`, "other platforms"},
	{"image of another name", `repack kube-nftproxy-image.tar 'sed -i s/registry.example.com/registry.example.org/ index.json'`, "another name"},
	{"Debian package of another version", `dpkg-deb -R LINUX.deb x; sed -i 's/^Version: .*/Version: 1/' x/DEBIAN/control; dpkg-deb -Zgzip -z1 -b x LINUX.deb >/dev/null; rm -r x`, "LINUX.deb has another name"},
	{"Debian package with another program", `dpkg-deb -R LINUX.deb x; echo x >>x/usr/bin/kube-nftproxy; dpkg-deb -Zgzip -z1 -b x LINUX.deb >/dev/null; rm -r x`, "LINUX.deb has another program"},
	{"Debian package without manual pages", `dpkg-deb -R LINUX.deb x; rm -r x/usr/share/man; dpkg-deb -Zgzip -z1 -b x LINUX.deb >/dev/null; rm -r x`, "LINUX.deb has other files"},
	{"damaged RPM package", `printf x | dd of=LINUX.rpm bs=1 seek=2000000 conv=notrunc status=none`, "LINUX.rpm is damaged"},
	{"no manual pages", `repack kube-nftproxy-man.tar.gz 'rm man/*.8'`, "no manual pages"},
	{"manifests with another image", `repack kube-nftproxy-manifests.tar.gz 'sed -i s/registry.example.com/registry.example.org/ deploy/base/kustomization.yaml'`, "has no line"},
	{"chart of another version", `repack CHART 'sed -i "s/^version: .*/version: 1.0.0/" kube-nftproxy/Chart.yaml'`, "has no line"},
	{"chart with another image", `repack CHART 'sed -i "s/^appVersion: .*/appVersion: v1/" kube-nftproxy/Chart.yaml'`, "another appVersion"},
	{"artifact of another chart", `repack CHART 'echo "# x" >>kube-nftproxy/values.yaml'`, "not the artifact"},
	{"plugin with another checksum", `echo >>kubectl-nftproxy-linux-amd64.tar.gz`, "another checksum"},
	{"no plugin", `sed -i '/uri:/d' nftproxy.yaml`, "names no plugin"},
	{"provenance without a commit", `sed -i s/gitCommit/gitcommit/ provenance.intoto.json`, "names no commit"},
	{"provenance of another version", `sed -i 's/"version": "v.*"/"version": "v0.0.1"/' provenance.intoto.json`, "not the files of a release"},
}

// TestVerifyRefuses changes the files of a release in each way that hack/release-verify.sh must detect.
func TestVerifyRefuses(t *testing.T) {
	dir, public := given(t)
	if dir == "" {
		var private string
		private, public = keys(t)
		dir = build(t, "umask 022", "ARCHITECTURES=amd64", "PLATFORMS=linux/amd64", "KEY="+private)
	}
	_, other := keys(t)
	for _, key := range []string{public, ""} {
		if out, err := verify(t.Context(), dir, key); err != nil {
			t.Fatalf("key %q: %v\n%s", key, err, out)
		}
	}
	if out, err := verify(t.Context(), dir, other); err == nil || !strings.Contains(out, "is not the signature") {
		t.Errorf("with another key: %v\n%s", err, out)
	}
	expand := strings.NewReplacer("LINUX", "kube-nftproxy-linux-amd64", "CHART", "kube-nftproxy-"+versionOf(t, dir)[1:]+".tgz")
	refuses := func(c change, more, key string) {
		t.Run(c.name, func(t *testing.T) {
			changed := filepath.Join(t.TempDir(), "release")
			mustShell(t, dir, `cp -r . "$TO"`, "TO="+changed)
			mustShell(t, changed, repack+expand.Replace(c.script)+more)
			if out, err := verify(t.Context(), changed, key); err == nil || !strings.Contains(out, expand.Replace(c.want)) {
				t.Errorf("%v, want %q\n%s", err, c.want, out)
			}
		})
	}
	for _, c := range incomplete {
		refuses(c, "", "")
	}
	for _, c := range unsigned {
		refuses(c, "", public)
	}
	for _, c := range consistent {
		refuses(c, reseal, "")
	}
}
