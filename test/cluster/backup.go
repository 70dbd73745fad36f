package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Backup saves a snapshot of etcd for [Cluster.Restore], as `etcdctl snapshot save` does.
func (c *Cluster) Backup(ctx context.Context) error {
	answer, err := c.Store(ctx).ask("/v3/maintenance/snapshot", struct{}{})
	if err != nil {
		return fmt.Errorf("back up etcd: %w", err)
	}
	var snapshot []byte
	for parts := json.NewDecoder(bytes.NewReader(answer)); ; {
		var part struct{ Result struct{ Blob []byte } }
		err := parts.Decode(&part)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("back up etcd: %w", err)
		}
		snapshot = append(snapshot, part.Result.Blob...)
	}
	return os.WriteFile(c.path("backup"), snapshot, 0o600)
}

// Restore resets etcd to the [Cluster.Backup], as etcd's documentation describes for Kubernetes: objects vanish, return
// and change, resource versions continue far above the old ones, and watches of old versions fail. It kills and
// restarts both programs.
func (c *Cluster) Restore(ctx context.Context) error {
	if err := c.restore(ctx); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return nil
}

func (c *Cluster) restore(ctx context.Context) (err error) {
	c.Stop()
	if err := os.RemoveAll(c.path("etcd")); err != nil {
		return err
	}
	etcdutl := exec.CommandContext(ctx, filepath.Join(c.config.BinDir, "etcdutl"), append(membership(),
		"snapshot", "restore", c.path("backup"), "--data-dir="+c.path("etcd"), "--bump-revision=1000000000", "--mark-compacted")...)
	if out, err := etcdutl.CombinedOutput(); err != nil {
		return fmt.Errorf("etcdutl: %w: %s", err, out)
	}
	if c.etcd, err = c.startEtcd(ctx); err != nil {
		return err
	}
	return c.startAPIServer(ctx, c.etcd)
}

// membership returns the flags of etcd's only member, for etcd and etcdutl.
func membership() []string {
	const peer = "http://127.0.0.1:0"
	return []string{"--name=test", "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer}
}
