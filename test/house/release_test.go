package house

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestReleaseVerifyRefuses changes the files of a release in each way that hack/release-verify.sh must detect.
func TestReleaseVerifyRefuses(t *testing.T) {
	write := func(t *testing.T, file, content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, dir string){
		"":             func(*testing.T, string) {},
		"changed file": func(t *testing.T, dir string) { write(t, dir+"/b", "changed") },
		"added file":   func(t *testing.T, dir string) { write(t, dir+"/c", "added") },
		"missing file": func(t *testing.T, dir string) {
			if err := os.Remove(dir + "/b"); err != nil {
				t.Fatal(err)
			}
		},
		"added link": func(t *testing.T, dir string) {
			if err := os.Symlink("a", dir+"/c"); err != nil {
				t.Fatal(err)
			}
		},
		"no checksums":    func(t *testing.T, dir string) { write(t, dir+"/SHA256SUMS", "") },
		"invalid line":    func(t *testing.T, dir string) { write(t, dir+"/SHA256SUMS", "a\nb\n") },
		"second checksum": func(t *testing.T, dir string) { write(t, dir+"/SHA256SUMS", sums("a", "b")+sums("b")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/a", "a")
			write(t, dir+"/b", "b")
			write(t, dir+"/SHA256SUMS", sums("a", "b"))
			change(t, dir)
			cmd := exec.CommandContext(t.Context(), "hack/release-verify.sh", dir)
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); (err == nil) != (name == "") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestReleaseVerifyChecksTheSignature: only the signature of the present checksums by the given key is valid.
func TestReleaseVerifyChecksTheSignature(t *testing.T) {
	dir, keys := t.TempDir(), t.TempDir()
	run := func(script string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "DIR="+dir, "KEYS="+keys)
		return cmd.CombinedOutput()
	}
	const sign = `openssl dgst -sha256 -sign $KEYS/own.pem $DIR/SHA256SUMS | base64 -w0 >$DIR/SHA256SUMS.sig; `
	if out, err := run(`echo a >$DIR/a; (cd $DIR; sha256sum a >SHA256SUMS)
for k in own other; do openssl ecparam -name prime256v1 -genkey -noout -out $KEYS/$k.pem; openssl pkey -in $KEYS/$k.pem -pubout -out $KEYS/$k.pub; done; ` + sign); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range []struct {
		name, script string
		valid        bool
	}{
		{"valid", "PUBLIC_KEY=$KEYS/own.pub hack/release-verify.sh $DIR", true},
		{"another key", "PUBLIC_KEY=$KEYS/other.pub hack/release-verify.sh $DIR", false},
		{"other checksums", "echo b >$DIR/b; (cd $DIR; sha256sum a b >SHA256SUMS); PUBLIC_KEY=$KEYS/own.pub hack/release-verify.sh $DIR", false},
		{"signed again", sign + "PUBLIC_KEY=$KEYS/own.pub hack/release-verify.sh $DIR", true},
		{"no signature", "rm $DIR/SHA256SUMS.sig; PUBLIC_KEY=$KEYS/own.pub hack/release-verify.sh $DIR", false},
	} {
		if out, err := run(c.script); (err == nil) != c.valid {
			t.Errorf("%s: %v: %s", c.name, err, out)
		}
	}
}

// sums lists files whose contents are their names.
func sums(names ...string) (out string) {
	for _, name := range names {
		out += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(name)), name)
	}
	return out
}
