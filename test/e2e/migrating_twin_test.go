//go:build twin

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
)

// TestMigratingFromKubeProxy follows docs/migrating.md with the original kube-proxy, in both directions.
func TestMigratingFromKubeProxy(t *testing.T) {
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	root := t.TempDir()
	must(t, errors.Join(err, copyFile(filepath.Join(bin, "kube-proxy"), filepath.Join(root, "usr/local/bin/kube-proxy")), addNFT(root)))
	testMigrating(t, kubelet.Image{Root: root, Entrypoint: []string{"/usr/local/bin/kube-proxy"}})
}

// addNFT adds nft with its libraries to an image, where kube-proxy finds it.
func addNFT(root string) error {
	path, err := exec.LookPath("nft")
	if err != nil {
		return err
	}
	libraries, err := exec.Command("ldd", path).Output()
	if err != nil {
		return err
	}
	errs := []error{copyFile(path, filepath.Join(root, "usr/sbin/nft"))}
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(libraries, -1) {
		errs = append(errs, copyFile(string(m[1]), filepath.Join(root, string(m[1]))))
	}
	return errors.Join(errs...)
}
