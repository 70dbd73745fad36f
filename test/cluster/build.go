package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Build runs hack/kubernetes.sh of the repository around the working directory, to put the named programs (default: etcd and
// kube-apiserver) into bin/kubernetes. It returns that folder. Existing programs take a fraction of a second, others minutes. The
// script's output is written to log.
func Build(ctx context.Context, log io.Writer, programs ...string) (string, error) {
	return BuildRelease(ctx, log, "", programs...)
}

// BuildRelease is Build for a release of Kubernetes, such as v1.36.3, into a folder of that name in bin/kubernetes. An empty release
// is that of test/kubernetes. It returns bin/kubernetes.
func BuildRelease(ctx context.Context, log io.Writer, release string, programs ...string) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "kubernetes.sh"), programs...)
	cmd.Env = append(os.Environ(), "KUBERNETES="+release)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %v: %w", programs, err)
	}
	return filepath.Join(root, "bin", "kubernetes"), nil
}

// repository returns the nearest folder at or above the working directory that has hack/kubernetes.sh.
func repository() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "kubernetes.sh")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find repository: no hack/kubernetes.sh at or above %s", wd)
		}
	}
}
