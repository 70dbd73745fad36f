package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
)

// useSnapshots configures snapshots of API objects, if there is a folder for them.
func (d *daemon) useSnapshots(cfg *watch.Config, connection *rest.Config) (err error) {
	if d.SnapshotDir == "" {
		return nil
	}
	cfg.SnapshotDir, cfg.Saved, cfg.Unconfirmed = d.SnapshotDir, d.metrics.SnapshotSaved, d.metrics.ServingSnapshot
	cfg.Serves = func() bool {
		found, err := apply.Earlier(d.families, d.ServiceProxyName)
		return found || err != nil
	}
	cfg.Cluster, err = clusterOf(connection)
	return err
}

// clusterOf identifies a cluster by the address and the certificate authority of its API server.
func clusterOf(connection *rest.Config) (string, error) {
	c := rest.CopyConfig(connection)
	if err := rest.LoadTLSFiles(c); err != nil {
		return "", fmt.Errorf("read the certificate authority of the API server: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", c.Host, c.CAData))
	return hex.EncodeToString(sum[:]), nil
}

// confirmed reports whether the API server has sent or confirmed all objects.
func (d *daemon) confirmed() bool {
	select {
	case <-d.source.Confirmed():
		return true
	default:
		return false
	}
}
