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

// errChanged ends the program, so that whoever runs it starts it anew with what the file says now (kube-proxy's words).
var errChanged = errors.New("content of the proxy server's configuration file was updated")

// lookAgain is how often the file is read where no event says that it has changed.
const lookAgain = 30 * time.Second

// AwaitChange returns errChanged when the configuration file has another content, however it got there: written in place,
// renamed over, or as a ConfigMap's volume is updated. A new content that can't be used is logged, and passed over: the
// program would not start with it. It returns nil when the context ends.
func (o *Options) AwaitChange(ctx context.Context) error {
	return o.awaitChange(ctx, watcherOf, lookAgain)
}

func (o *Options) awaitChange(ctx context.Context, watch func(file string) (*fsnotify.Watcher, error), every time.Duration) error {
	w, err := watch(o.File)
	if err != nil {
		// Other programs on the node may have taken all that the kernel gives.
		klog.FromContext(ctx).Error(err, "Cannot watch the configuration file; polling it instead (fs.inotify.max_user_instances and "+
			"max_user_watches may have to be raised)", "file", o.File, "interval", every)
		w = &fsnotify.Watcher{} // says nothing
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

// watcherOf watches the folders that have something to do with a file.
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

// foldersOf lists the folder of a path, and that of the file to which it leads.
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
	gates, err := newGates(c.FeatureGates)
	if err != nil {
		return err
	}
	applyPlatformDefaults(c)
	return validate(c, gates).ToAggregate()
}
