package house

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestKrewManifest builds the plugin for this platform, and compares the manifest for krew with the archive.
func TestKrewManifest(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "hack/plugin.sh")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PLATFORMS=linux/"+runtime.GOARCH, "VERSION=v0.1.0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var manifest struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, ShortDescription, Description, Caveats, Homepage string
			Platforms                                                 []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	lab.Must(t, yaml.Unmarshal([]byte(mustRead(t, "bin/plugin/nftproxy.yaml")), &manifest))
	s := manifest.Spec
	if manifest.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || manifest.Kind != "Plugin" || manifest.Metadata.Name != "nftproxy" {
		t.Errorf("krew rejects the manifest: %+v", manifest)
	}
	for line := range strings.Lines(s.Description + s.Caveats) {
		if len(line) > 81 {
			t.Errorf("krew warns of lines above 80 characters: %q", line)
		}
	}
	if s.Version != "v0.1.0" || s.Homepage == "" || s.Description == "" || s.ShortDescription == "" || len(s.ShortDescription) > 50 || len(s.Platforms) != 1 {
		t.Fatalf("the manifest: %+v", manifest)
	}
	p := s.Platforms[0]
	archive := filepath.Join("bin/plugin", filepath.Base(p.URI))
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(mustRead(t, archive)))); p.SHA256 != sum || p.Selector.MatchLabels["arch"] != runtime.GOARCH || p.Selector.MatchLabels["os"] != "linux" || len(p.Selector.MatchLabels) != 2 {
		t.Errorf("the platform %+v, and an archive with checksum %s", p, sum)
	}
	list, err := exec.CommandContext(t.Context(), "tar", "tzf", filepath.Join(root, archive)).Output()
	if err != nil || string(list) != p.Bin+"\nLICENSE\n" {
		t.Errorf("the archive has %q, %v", list, err)
	}
}
