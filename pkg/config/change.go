package config

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// errChanged causes the program to exit, so that the kubelet restarts it with the new file. The text is kube-proxy's.
var errChanged = errors.New("content of the proxy server's configuration file was updated")

// lookAgain is the time after which the file is read again if no event arrives.
const lookAgain = 30 * time.Second

// Values of --config-reload.
const (
	reloadNever = "never"
	reloadExit  = "exit"
)

// AwaitChange follows the content of the configuration file until the context ends. After each change, it calls
// outdated with true if the content differs from the configuration in use, otherwise with false. It notices a write in
// place, a rename, and an update of a ConfigMap volume. With --config-reload=exit, it returns errChanged after a random
// part of --config-reload-jitter. It does not return if the content has become equal or invalid by then: the program
// would not start with invalid content.
func (o *Options) AwaitChange(ctx context.Context, outdated func(bool)) error {
	return o.awaitChange(ctx, watcherOf, lookAgain, outdated)
}

func (o *Options) awaitChange(
	ctx context.Context, watch func(file string) (*fsnotify.Watcher, error), every time.Duration, outdated func(bool),
) error {
	logger := klog.FromContext(ctx)
	w, err := watch(o.File)
	if err != nil {
		// Other programs on the node may have used all inotify instances.
		logger.Error(err, "Cannot watch the configuration file; polling it instead. Possible fix: raise "+
			"fs.inotify.max_user_instances or max_user_watches", "file", o.File, "interval", every)
		w = &fsnotify.Watcher{} // without events
	} else {
		defer w.Close() //nolint:errcheck // nothing is written
	}
	seen := o.content
	tick := time.NewTicker(every)
	defer tick.Stop()
	var exit <-chan time.Time
	for {
		now, err := os.ReadFile(o.File)
		if err == nil && !bytes.Equal(now, seen) {
			seen = now
			invalid, same := checkContent(now), bytes.Equal(now, o.content)
			outdated(!same)
			switch {
			case same:
				logger.Info("The configuration file has its previous content again", "file", o.File)
				exit = nil
			case invalid != nil:
				logger.Error(invalid, "The updated configuration file is invalid; keeping the previous configuration",
					"file", o.File)
				exit = nil
			case o.reload != reloadExit:
				logger.Info("The configuration file has changed; a restart of the program applies it", "file", o.File)
			case exit == nil:
				pause := time.Duration(rand.Float64() * float64(o.reloadJitter))
				logger.Info("The configuration file has changed; the program exits to apply it",
					"file", o.File, "after", pause.Round(time.Second))
				exit = time.After(pause)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-exit:
			return errChanged
		case <-w.Events:
		case <-tick.C:
		case err := <-w.Errors:
			logger.Error(err, "Cannot watch the configuration file", "file", o.File)
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

// foldersOf returns the directory of a path, and the directory of the file to which the path leads.
func foldersOf(path string) []string {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}

// checkContent returns the errors because of which the program would not start with this content of the file, or nil.
func checkContent(data []byte) error {
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
