package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Backup keeps what etcd holds now, for [Cluster.Restore]. etcd stands still meanwhile: its files are those that it would find after a
// power failure.
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

// Restore brings etcd back to where it was at the [Cluster.Backup], as an administrator does after a disaster: objects vanish, return and
// change, and resource versions begin again at a lower number. Both programs are killed for it and started anew.
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
