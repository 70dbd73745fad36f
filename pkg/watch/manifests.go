package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

const (
	// quiet is how long nothing must happen in the folder before it is read: editors, and whoever unpacks an
	// archive, cause many events.
	quiet = 50 * time.Millisecond
	// patience is how long events may put off the reading.
	patience = time.Second
	// recheck is how often the folder is read without an event: links to files elsewhere, and network file systems,
	// cause none.
	recheck = 30 * time.Second
)

// Manifests is the source that reads a folder of YAML and JSON files: the files *.yaml, *.yml and *.json directly in
// it, and none whose name starts with a dot. They hold Services, EndpointSlices, the Node and ServiceCIDRs in API
// version v1 of their groups, or Lists of them. What the API server would default is defaulted (see defaults.go), but
// nothing is allocated, and no controller makes EndpointSlices.
type Manifests struct {
	Store
	folder  string
	read    func(path string) ([]byte, error)
	parser  parser
	report  func(model.Problem)
	tracker *track.Tracker
	kinds   [kindCount]storedKind
	synced  chan struct{}
	loaded  sync.Once

	files map[string]*file // by path; only read and written by Load
	told  map[model.Problem]struct{}
}

// kind is an index into Manifests.kinds.
type kind int

const (
	kindService kind = iota
	kindSlice
	kindNode
	kindServiceCIDR
	kindCount
)

// storedKind says where the objects of a kind go.
type storedKind struct {
	name string
	*objects
}

// file is what is known of a file.
type file struct {
	sum      checksum // of the content that was read last
	objects  []fileObject
	problems []model.Problem
	// kept are objects of earlier contents that stay in force: as long as some document cannot be read, it may be theirs.
	kept []fileObject
}

type fileObject struct {
	kind kind
	*object
}

// NewManifests returns a source that has read nothing yet.
func NewManifests(cfg Config) *Manifests {
	m := &Manifests{
		Store:   newStore(cfg),
		folder:  cfg.Folder,
		read:    readRegular,
		parser:  newParser(),
		report:  cfg.report(),
		tracker: cfg.Tracker,
		synced:  make(chan struct{}),
		files:   map[string]*file{},
	}
	m.kinds = [kindCount]storedKind{
		kindService:     {"Service", m.services},
		kindSlice:       {"EndpointSlice", m.slices},
		kindNode:        {"Node", m.nodes},
		kindServiceCIDR: {"ServiceCIDR", m.serviceCIDRs},
	}
	return m
}

// Run reads the folder and then its changes until the context ends, and returns nil then. It returns an error if the
// folder cannot be read at the start or cannot be watched. It must be called once.
func (m *Manifests) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch folder of manifests (fs.inotify.max_user_instances may have to be raised): %w", err)
	}
	defer watcher.Close() //nolint:errcheck // nothing depends on it any more
	if err := watcher.Add(m.folder); err != nil {
		return m.unreadable(err)
	}
	if err := m.Load(); err != nil {
		return err
	}
	return m.follow(ctx, watcher)
}

// Synced returns a channel that is closed when the folder has been read for the first time.
func (m *Manifests) Synced() <-chan struct{} {
	return m.synced
}

// Load reads the folder once and marks what changed since the last time. An error says that the folder itself cannot
// be read, and that nothing changed. It must not be called while Run or another Load is running.
func (m *Manifests) Load() error {
	contents, err := readFolder(m.folder, m.read)
	if err != nil {
		return m.unreadable(err)
	}
	m.take(contents)
	return nil
}

// LoadFrom is Load for what somebody has read: all that there is, in the format of one file, under a name for messages.
func (m *Manifests) LoadFrom(name string, data []byte) {
	m.take(map[string]content{name: {data: data}})
}

// take takes up what files hold, by path.
func (m *Manifests) take(contents map[string]content) {
	maps.DeleteFunc(m.files, func(path string, _ *file) bool {
		_, exists := contents[path]
		return !exists
	})
	for _, path := range slices.Sorted(maps.Keys(contents)) {
		m.readFile(path, contents[path])
	}
	m.publish()
	m.loaded.Do(func() { close(m.synced) })
}

func (m *Manifests) unreadable(err error) error {
	return fmt.Errorf("read folder of manifests %q (it must exist and be readable): %w", m.folder, err)
}

// follow reads the folder after each burst of events. Events about the folder are enough: a change of a file that a
// link in the folder points to, as in a mounted ConfigMap, comes with a new link.
func (m *Manifests) follow(ctx context.Context, watcher *fsnotify.Watcher) error {
	logger := klog.FromContext(ctx)
	again := time.NewTicker(recheck)
	defer again.Stop()
	var settled <-chan time.Time
	var latest time.Time // when the burst has to be read, even if it goes on
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
			if settled == nil {
				latest = time.Now().Add(patience)
			}
			settled = time.After(min(quiet, time.Until(latest)))
		case err := <-watcher.Errors:
			logger.Error(err, "Missed changes of manifests; reading all again", "folder", m.folder)
			settled = time.After(quiet)
		case <-again.C:
			// A folder that was replaced by another one of the same name has to be watched anew.
			m.reload(logger, watcher.Add(m.folder))
		case <-settled:
			settled = nil
			m.reload(logger, nil)
		}
	}
}

// reload keeps what is known where the folder cannot be read: it may be in the middle of being replaced.
func (m *Manifests) reload(logger klog.Logger, err error) {
	if err = errors.Join(err, m.Load()); err != nil {
		logger.Error(err, "Keeping the previous manifests, will retry", "interval", recheck)
	}
}

// readFile brings m.files up to date with a file's content. A file that cannot be read keeps its objects.
func (m *Manifests) readFile(path string, c content) {
	known := m.files[path]
	if known == nil {
		known = &file{}
		m.files[path] = known
	}
	if known.sum == c.sum() {
		return
	}
	known.sum = c.sum()
	for _, problem := range known.problems { // a new content is reported even if it has the old one's problems
		delete(m.told, problem)
	}
	if c.err != nil {
		known.problems = []model.Problem{fileProblem(path, c.err)}
		return
	}
	m.parse(path, c.data, known)
}

// parse makes a file what its content says.
func (m *Manifests) parse(path string, data []byte, into *file) {
	result := m.parser.parse(path, data)
	before := slices.Concat(into.objects, into.kept)
	into.objects, into.kept, into.problems = nil, nil, result.problems
	type identity struct {
		kind
		types.NamespacedName
	}
	known := map[identity]struct{}{}
	for _, item := range result.objects {
		k := kindOf(item)
		encoded, err := m.kinds[k].transform(item)
		if err != nil {
			into.problems, result.unread = append(into.problems, fileProblem(path, err)), result.unread+1
			continue
		}
		o := fileObject{k, encoded.(*object)}
		into.objects = append(into.objects, o)
		known[identity{k, o.NamespacedName}] = struct{}{}
	}
	for _, o := range before {
		if _, again := known[identity{o.kind, o.NamespacedName}]; result.unread > 0 && !again {
			into.kept = append(into.kept, o)
		}
	}
}

func kindOf(item runtime.Object) kind {
	switch item.(type) {
	case *corev1.Service:
		return kindService
	case *discoveryv1.EndpointSlice:
		return kindSlice
	case *corev1.Node:
		return kindNode
	}
	return kindServiceCIDR
}

func fileProblem(path string, err error) model.Problem {
	return model.Problem{
		Kind:   "File",
		Name:   types.NamespacedName{Name: path},
		Reason: err.Error() + "; the previous content of the file stays in force",
	}
}

// publish makes the stores hold what the files do, and marks and reports the differences. What changed at one time is
// programmed at one time: an address may go from one Service to another.
func (m *Manifests) publish() {
	objects, problems := m.merge()
	m.tracker.Together(func() {
		for k, wanted := range objects {
			m.kinds[k].publish(wanted)
		}
	})
	told := map[model.Problem]struct{}{}
	for _, problem := range problems {
		_, before := m.told[problem]
		if _, now := told[problem]; !before && !now {
			m.report(problem)
		}
		told[problem] = struct{}{}
	}
	m.told = told
}

// merge gathers the objects of all files by kind and key. Of two with the same name the one in the first file wins, by the files' names,
// and in one file the first one. What a file keeps of an earlier content gives way to all others.
func (m *Manifests) merge() ([kindCount]map[types.NamespacedName]*object, []model.Problem) {
	var objects [kindCount]map[types.NamespacedName]*object
	for k := range objects {
		objects[k] = map[types.NamespacedName]*object{}
	}
	var problems []model.Problem
	winners := map[*object]string{}
	paths := slices.Sorted(maps.Keys(m.files))
	for _, path := range paths {
		problems = append(problems, m.files[path].problems...)
		duplicates := 0
		for _, o := range m.files[path].objects {
			winner, taken := objects[o.kind][o.NamespacedName]
			if !taken {
				objects[o.kind][o.NamespacedName] = o.object
				winners[o.object] = path
				continue
			}
			if duplicates++; duplicates <= m.parser.reports {
				problems = append(problems, m.duplicate(o, path, winners[winner]))
			}
		}
		if more := duplicates - m.parser.reports; more > 0 {
			problems = append(problems, model.Problem{
				Kind: "File", Name: types.NamespacedName{Name: path}, Reason: fmt.Sprintf("has %d more duplicate objects", more),
			})
		}
	}
	for _, path := range paths {
		for _, o := range m.files[path].kept {
			if _, taken := objects[o.kind][o.NamespacedName]; !taken {
				objects[o.kind][o.NamespacedName] = o.object
			}
		}
	}
	return objects, problems
}

func (m *Manifests) duplicate(o fileObject, path, winner string) model.Problem {
	return model.Problem{
		Kind:   m.kinds[o.kind].name,
		Name:   o.NamespacedName,
		Reason: fmt.Sprintf("is in %s and again in %s: the second one is not used; remove one of them", winner, path),
	}
}

func (s storedKind) publish(wanted map[types.NamespacedName]*object) {
	for name, after := range wanted {
		if s.get(name) != after {
			s.put(after)
		}
	}
	s.keep(func(name types.NamespacedName) bool { return wanted[name] != nil })
}
