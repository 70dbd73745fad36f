package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Backup saves etcd's data for [Cluster.Restore]. etcd is paused meanwhile: its files are in the same state as after a power
// failure.
func (c *Cluster) Backup() error {
	etcd := c.processes[0].pid
	if err := syscall.Kill(etcd, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("back up etcd: %w", err)
	}
	err := os.CopyFS(c.path("backup"), os.DirFS(c.path("etcd")))
	if err = errors.Join(err, syscall.Kill(etcd, syscall.SIGCONT)); err != nil {
		return fmt.Errorf("back up etcd: %w", err)
	}
	return nil
}

// Restore resets etcd to the [Cluster.Backup], as an administrator does after a disaster: objects vanish, return and change, and
// resource versions restart at a lower number. It kills and restarts both programs.
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
	if err := os.Rename(c.path("backup"), c.path("etcd")); err != nil {
		return err
	}
	if c.etcd, err = c.startEtcd(ctx); err != nil {
		return err
	}
	return c.startAPIServer(ctx, c.etcd)
}
