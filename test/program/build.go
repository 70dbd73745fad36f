package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

const module = "github.com/kube-nftproxy/kube-nftproxy/"

// Build builds kube-nftproxy of the module around the working directory into a folder, as a static program, and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return BuildCommand(ctx, dir, "cmd/kube-nftproxy")
}

// BuildCommand is Build for a command of the module, named by its folder. It copies the command from bin/programs, where go build links it
// only if it has changed: many tests build the same commands.
func BuildCommand(ctx context.Context, dir, folder string) (string, error) {
	name := path.Base(folder)
	text, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	programs := filepath.Join(filepath.Dir(strings.TrimSpace(string(text))), "bin", "programs")
	lock, err := lockFolder(programs)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	defer lock.Close() //nolint:errcheck // it was not written to
	built, copied := filepath.Join(programs, name), filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", built, module+folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	content, err := os.ReadFile(built)
	if err == nil {
		err = os.WriteFile(copied, content, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return copied, nil
}

// lockFolder creates a folder if necessary, and waits until no other process holds its lock. Closing the file releases the lock.
func lockFolder(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
