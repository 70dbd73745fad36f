package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
)

const (
	// quiet is the time without events before a read of the folder: editors and archive tools cause many events for one
	// change.
	quiet = 50 * time.Millisecond
	// patience is the longest delay of a read while events continue.
	patience = time.Second
	// recheck is the interval of reads without events: changes in the targets of links, and in network file systems,
	// cause no events.
	recheck = 30 * time.Second
	// readPatience is the longest time to read a file. A file that takes longer delays the other files once.
	readPatience = 10 * time.Second
)

// Source reads a folder of YAML and JSON files: the files *.yaml, *.yml and *.json directly in it, except files with a
// name that starts with a dot. They contain Services, EndpointSlices, the Node, ServiceCIDRs and, for host ports, Pods
// in API version v1 of their groups, or Lists of them. Missing fields get the API server's defaults (see defaults.go).
// The source does not allocate addresses or ports, and does not make EndpointSlices.
type Source struct {
	*watch.Store
	folder  string
	read    func(path string) ([]byte, error)
	parser  parser
	report  func(model.Problem)
	tracker *track.Tracker
	kinds   [kindCount]watch.Kind
	synced  chan struct{}
	loaded  sync.Once

	files    map[string]*file // by path; only Load reads and writes it
	reported map[model.Problem]struct{}
	// rejected are the problems that [Source.Rejected] returns.
	rejected atomic.Pointer[[]model.Problem]
}

// kind is an index into Source.kinds.
type kind int

const (
	kindService kind = iota
	kindSlice
	kindNode
	kindServiceCIDR
	kindPod
	kindCount
)

// file is the last known state of a file.
type file struct {
	sum      checksum // of the last content
	objects  []fileObject
	problems []model.Problem
	// kept are objects of earlier contents. They stay in use while a document is unreadable, because this document may
	// contain them.
	kept []fileObject
}

type fileObject struct {
	kind kind
	*watch.Object
}

// New returns a source without objects. Run or Load reads them.
func New(cfg watch.Config) *Source {
	m := &Source{
		Store:   watch.NewStore(cfg),
		folder:  cfg.Folder,
		read:    newReader().read,
		parser:  newParser(),
		tracker: cfg.Tracker,
		synced:  make(chan struct{}),
		files:   map[string]*file{},
	}
	m.report = m.Store.Report
	k := &m.kinds
	k[kindService], k[kindSlice], k[kindNode], k[kindServiceCIDR], k[kindPod] = m.Store.Kinds()
	return m
}

// Run reads the folder, then follows its changes. It returns nil when the context ends, or an error if the folder
// cannot be watched or, at the start, cannot be read. Call it once.
func (m *Source) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch folder of manifests (fs.inotify.max_user_instances may have to be raised): %w", err)
	}
	defer watcher.Close() //nolint:errcheck // unused from here on
	if err := watcher.Add(m.folder); err != nil {
		return m.unreadable(err)
	}
	if err := m.Load(); err != nil {
		return err
	}
	return m.follow(ctx, watcher)
}

// Loaded returns a channel that is closed after the first read of the folder.
func (m *Source) Loaded() <-chan struct{} {
	return m.synced
}

// Confirmed returns the same channel: a folder needs no confirmation.
func (m *Source) Confirmed() <-chan struct{} { return m.synced }

// Load reads the folder once and marks changes since the last read. If the folder is not readable, it returns an error
// and changes nothing. Do not call it during Run or another Load.
func (m *Source) Load() error {
	contents, err := readFolder(m.folder, m.read)
	if err != nil {
		return m.unreadable(err)
	}
	m.take(contents)
	return nil
}

// Rejected returns the present problems of the files: documents that cannot be read, and duplicates. Any goroutine may
// call it.
func (m *Source) Rejected() []model.Problem {
	if list := m.rejected.Load(); list != nil {
		return *list
	}
	return nil
}

// LoadFrom does the same as Load with the content of one file that holds all objects. Messages use the given name.
func (m *Source) LoadFrom(name string, data []byte) {
	m.take(map[string]content{name: {data: data}})
}

// LoadMore adds the objects of one more file. Call it after Load or LoadFrom.
func (m *Source) LoadMore(name string, data []byte) {
	m.readFile(name, content{data: data})
	m.publish()
}

// take updates the files and stores to the given contents, by path.
func (m *Source) take(contents map[string]content) {
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

func (m *Source) unreadable(err error) error {
	return fmt.Errorf("read folder of manifests %q (it must exist and be readable): %w", m.folder, err)
}

// follow reads the folder after each burst of events. It watches only the folder: if a link in the folder gets a new
// target, as in a mounted ConfigMap, the link itself changes.
func (m *Source) follow(ctx context.Context, watcher *fsnotify.Watcher) error {
	logger := klog.FromContext(ctx)
	again := time.NewTicker(recheck)
	defer again.Stop()
	var settled <-chan time.Time
	var latest time.Time // the latest time to read, even if the burst continues
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
			// A new watch is necessary if another folder of the same name has replaced this one.
			m.reload(logger, watcher.Add(m.folder))
		case <-settled:
			settled = nil
			m.reload(logger, nil)
		}
	}
}

// reload keeps all objects if the folder cannot be read: a program may be replacing it.
func (m *Source) reload(logger klog.Logger, err error) {
	if err = errors.Join(err, m.Load()); err != nil {
		m.rejected.Store(&[]model.Problem{fileProblem(m.folder, err)})
		logger.Error(err, "Keeping the previous manifests, will retry", "interval", recheck)
	}
}

// readFile updates m.files with a file's content. A file that cannot be read keeps its objects.
func (m *Source) readFile(path string, c content) {
	known := m.files[path]
	if known == nil {
		known = &file{}
		m.files[path] = known
	}
	if known.sum == c.sum() {
		return
	}
	known.sum = c.sum()
	for _, problem := range known.problems { // after a change, report the same problems again
		delete(m.reported, problem)
	}
	if c.err != nil {
		known.problems = []model.Problem{fileProblem(path, c.err)}
		return
	}
	m.parse(path, c.data, known)
}

// parse sets a file's objects and problems from its content.
func (m *Source) parse(path string, data []byte, into *file) {
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
		encoded, err := m.kinds[k].Encode(item)
		if err != nil {
			into.problems, result.unread = append(into.problems, fileProblem(path, err)), result.unread+1
			continue
		}
		o := fileObject{k, encoded.(*watch.Object)}
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
	case *corev1.Pod:
		return kindPod
	}
	return kindServiceCIDR
}

func fileProblem(path string, err error) model.Problem {
	return model.Problem{
		Kind:   "File",
		Name:   types.NamespacedName{Name: path},
		Reason: err.Error() + "; the previous content of the file stays in use",
	}
}

// publish updates the stores to the content of all files, and marks and reports the differences. It marks all changes
// of one read together, so that they are in one sync: an address may move from one Service to another.
func (m *Source) publish() {
	objects, problems := m.merge()
	m.tracker.Together(func() {
		for k, wanted := range objects {
			m.kinds[k].Publish(wanted)
		}
	})
	reported := map[model.Problem]struct{}{}
	for _, problem := range problems {
		_, before := m.reported[problem]
		if _, now := reported[problem]; !before && !now {
			m.report(problem)
		}
		reported[problem] = struct{}{}
	}
	m.reported = reported
	m.rejected.Store(&problems)
}

// merge returns the objects of all files by kind and name. Of duplicates it keeps the one in the first file by name,
// and within a file the first one. Objects kept from an earlier content have the lowest precedence.
func (m *Source) merge() ([kindCount]map[types.NamespacedName]*watch.Object, []model.Problem) {
	var objects [kindCount]map[types.NamespacedName]*watch.Object
	for k := range objects {
		objects[k] = map[types.NamespacedName]*watch.Object{}
	}
	var problems []model.Problem
	winners := map[*watch.Object]string{}
	paths := slices.Sorted(maps.Keys(m.files))
	for _, path := range paths {
		problems = append(problems, m.files[path].problems...)
		duplicates := 0
		for _, o := range m.files[path].objects {
			winner, taken := objects[o.kind][o.NamespacedName]
			if !taken {
				objects[o.kind][o.NamespacedName] = o.Object
				winners[o.Object] = path
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
				objects[o.kind][o.NamespacedName] = o.Object
			}
		}
	}
	return objects, problems
}

func (m *Source) duplicate(o fileObject, path, winner string) model.Problem {
	return model.Problem{
		Kind:   m.kinds[o.kind].Name,
		Name:   o.NamespacedName,
		Reason: fmt.Sprintf("is in %s and again in %s: the second one is not used; remove one of them", winner, path),
	}
}
