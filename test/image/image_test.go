//go:build e2e

package image

import (
	"os"
	"os/exec"
	"testing"
)

// TestImage makes the image for the architecture that can run here. The one for both is a test of the lane twin, since to
// build for another architecture takes minutes when Go's cache is empty.
func TestImage(t *testing.T) {
	first, second := makeTwice(t, "amd64")
	checkReproducible(t, first, second)
	checkImage(t, first, "amd64")
	root := first.unpack(t, "amd64")
	t.Run("runs", func(t *testing.T) { checkRuns(t, root) })
	t.Run("serves", func(t *testing.T) { checkServes(t, root) })
}

// TestProgram runs the tests of the program that makes the image, which is a module of its own.
func TestProgram(t *testing.T) {
	cmd := exec.Command("go", "test", "./...")
	cmd.Dir, cmd.Env = repository+"/hack/image", append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go test in hack/image: %v\n%s", err, out)
	}
}
