package config

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// errChanged causes the program to exit, so that it is restarted with the new file (kube-proxy's words).
var errChanged = errors.New("content of the proxy server's configuration file was updated")

// lookAgain is the interval of reads of the file without an event.
const lookAgain = 30 * time.Second

// AwaitChange returns errChanged when the content of the configuration file has changed, by any means: a write in place, a
// rename, or an update of a ConfigMap volume. An invalid content is logged and ignored: the program would not start with it. It
// returns nil when the context ends.
func (o *Options) AwaitChange(ctx context.Context) error {
	return o.awaitChange(ctx, watcherOf, lookAgain)
}

func (o *Options) awaitChange(ctx context.Context, watch func(file string) (*fsnotify.Watcher, error), every time.Duration) error {
	w, err := watch(o.File)
	if err != nil {
		// Other programs on the node may have used all inotify instances.
		klog.FromContext(ctx).Error(err, "Cannot watch the configuration file; polling it instead (fs.inotify.max_user_instances and "+
			"max_user_watches may have to be raised)", "file", o.File, "interval", every)
		w = &fsnotify.Watcher{} // without events
	} else {
		defer w.Close() //nolint:errcheck // nothing is written
	}
	seen := o.content
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		now, err := os.ReadFile(o.File)
		if err == nil && !bytes.Equal(now, seen) {
			if seen = now; bytes.Equal(now, o.content) {
				continue
			}
			if err := usable(now); err == nil {
				return errChanged
			} else {
				klog.FromContext(ctx).Error(err, "The updated configuration file is invalid; keeping the previous configuration", "file", o.File)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
		case <-tick.C:
		case err := <-w.Errors:
			klog.FromContext(ctx).Error(err, "Cannot watch the configuration file", "file", o.File)
		}
	}
}

// watcherOf watches the directories of a file and of its link targets.
func watcherOf(file string) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, dir := range foldersOf(file) {
		if err := w.Add(dir); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

// foldersOf returns the directory of a path, and that of the file to which the path leads.
func foldersOf(path string) []string {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}

func usable(data []byte) error {
	c, _, err := decode(data)
	if err != nil {
		return err
	}
	gates, _, err := newGates(c.FeatureGates)
	if err != nil {
		return err
	}
	applyPlatformDefaults(c)
	return validate(c, gates).ToAggregate()
}
