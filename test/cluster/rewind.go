package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// Checkpoint saves all objects, for [Cluster.Rewind].
func (c *Cluster) Checkpoint(ctx context.Context) (err error) {
	c.checkpoint, err = c.keys(ctx)
	return err
}

// Rewind deletes the objects that were created since the [Cluster.Checkpoint], and restores changed and deleted ones. It writes to
// etcd, so finalizers have no effect, and a watch sees ordinary changes. Resource versions continue.
func (c *Cluster) Rewind(ctx context.Context) error {
	now, err := c.keys(ctx)
	if err != nil {
		return err
	}
	store := c.Store(ctx)
	for key := range now {
		if _, before := c.checkpoint[key]; !before {
			store.add(storeOp{Delete: &storeDelete{[]byte(key)}})
		}
	}
	for key, value := range c.checkpoint {
		if !bytes.Equal(now[key], value) {
			store.add(storeOp{Put: &storePut{[]byte(key), value}})
		}
	}
	return store.Flush()
}

// keys reads etcd's content, without the leases that the API server renews.
func (c *Cluster) keys(ctx context.Context) (map[string][]byte, error) {
	answer, err := c.Store(ctx).ask("/v3/kv/range", map[string][]byte{"key": []byte("/registry/"), "range_end": []byte("/registry0")})
	if err != nil {
		return nil, err
	}
	var list struct {
		Kvs []struct{ Key, Value []byte }
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("read etcd's content: %w", err)
	}
	all := map[string][]byte{}
	for _, kv := range list.Kvs {
		if key := string(kv.Key); !strings.HasPrefix(key, "/registry/leases/") && !strings.HasPrefix(key, "/registry/masterleases/") {
			all[key] = kv.Value
		}
	}
	return all, nil
}
