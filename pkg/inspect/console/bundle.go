package console

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/compare"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Problems keeps the last reported problems.
type Problems struct {
	mu   sync.Mutex
	list []reported
}

// reported is a problem with its time.
type reported struct {
	Time    time.Time     `json:"time"`
	Problem model.Problem `json:"problem"`
}

// Note adds a problem.
func (r *Problems) Note(p model.Problem) {
	const most = 200
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == most {
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, reported{time.Now(), p})
}

func (r *Problems) all() []reported {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// archive is an unfinished tar.gz file. It keeps its first error.
type archive struct {
	gzip *gzip.Writer
	tar  *tar.Writer
	at   time.Time
	err  error
}

// add adds a file. If err is not nil, it appends the error to the content.
func (a *archive) add(name string, content []byte, err error) {
	if a.err != nil {
		return
	}
	if err != nil {
		content = append(content, "\nnot available: "+err.Error()+"\n"...)
	}
	h := &tar.Header{Name: "kube-nftproxy/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: a.at, Typeflag: tar.TypeReg}
	if a.err = a.tar.WriteHeader(h); a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

// addValue adds a value as JSON and, unless text is nil, as text.
func (a *archive) addValue(name string, value any, text func(*view.Printer), err error) {
	if err != nil {
		a.add(name+".json", nil, err)
		return
	}
	b, err := json.MarshalIndent(value, "", "  ")
	a.add(name+".json", b, err)
	if text != nil {
		var out bytes.Buffer
		p := view.NewPrinter(&out)
		p.Wide = true
		text(p)
		a.add(name+".txt", out.Bytes(), p.Err())
	}
}

func (a *archive) close() error { return errors.Join(a.err, a.tar.Close(), a.gzip.Close()) }

// bundle writes an archive for a bug report. The archive contains nothing from a kubeconfig, a token or the
// environment.
func (c *Console) bundle(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * control.AnswerTime))
	w.Header().Set("Content-Type", "application/gzip")
	z := gzip.NewWriter(w)
	a := &archive{gzip: z, tar: tar.NewWriter(z), at: time.Now()}
	ctx := r.Context()
	status := c.status(ctx)
	a.addValue("status", status, status.Text, nil)
	services, err := c.services(ctx, query{})
	a.addValue("services", services, services.Detail, err)
	verification, err := c.verify(ctx, true)
	a.addValue("verify", verification, verification.Text, err)
	a.addValue("problems", c.Problems.all(), nil, nil)
	text, err := c.ConfigText()
	a.add("config.yaml", text, err)
	a.add("flags.txt", c.FlagsText(), nil)
	text, err = c.metricsText()
	a.add("metrics.txt", text, err)
	text, err = compare.Listing(plan.Table(c.ServiceProxyName))
	a.add("tables.nft", text, err)
	text, err = compare.Others(plan.Table(c.ServiceProxyName))
	a.add("other-tables.txt", limited(text), err)
	text, err = host.Listing()
	a.add("routes.txt", limited(text), err)
	preflight := doctor.Preflight(ctx, doctor.Site{NodeName: c.NodeName, ServiceCIDRs: c.serviceNetworks().CIDRs,
		Root: "/", Lacks: c.Lacks, Table: plan.TableName, First: plan.FirstPriority})
	a.addValue("preflight", preflight, preflight.Text, nil)
	text, err = logEnd("/proc/self/fd/2")
	a.add("log.txt", fmt.Appendf(text, elsewhere, c.NodeName), err)
	a.add("versions.txt", c.versions(), nil)
	a.add("sysctls.txt", sysctls("/proc/sys"), nil)
	var stacks bytes.Buffer
	err = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	a.add("goroutines.txt", stacks.Bytes(), err)
	if err := a.close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to write a bundle", "err", err)
	}
}

// mostText is the limit of a file of the archive whose size another program determines.
const mostText = 1 << 20

// limited returns the first [mostText] bytes of a text.
func limited(text []byte) []byte {
	if len(text) > mostText {
		return append(text[:mostText:mostText], "\n...\n"...)
	}
	return text
}

// elsewhere tells where the parts are that the program cannot read: the log, which the container runtime has, and the
// Events, which its role does not permit to read.
const elsewhere = `
To save the log of this program and of the previous container, and the Events:
  kubectl get pods -A -o wide --field-selector spec.nodeName=%[1]s
  kubectl -n NAMESPACE logs POD --timestamps
  kubectl -n NAMESPACE logs POD --timestamps --previous
  kubectl get events -A --field-selector involvedObject.kind=Node,involvedObject.name=%[1]s
  kubectl get events -A --field-selector source=kube-nftproxy
`

// logEnd returns the end of the program's log if the log is a file.
func logEnd(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	b := make([]byte, min(info.Size(), mostText))
	n, err := f.ReadAt(b, info.Size()-int64(len(b)))
	if errors.Is(err, io.EOF) { // the file was cut meanwhile
		err = nil
	}
	return b[:n], err
}

func (c *Console) metricsText() ([]byte, error) {
	families, err := c.Gatherer.Gather()
	var b bytes.Buffer
	e := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		err = cmp.Or(err, e.Encode(f))
	}
	return b.Bytes(), err
}

func (c *Console) versions() []byte {
	return fmt.Appendf(nil, "%s\nkernel %s\n%d CPUs, GOMAXPROCS %d\n", settings.Build(c.Version), host.Release(), runtime.NumCPU(), runtime.GOMAXPROCS(0))
}

// sysctls lists the sysctls that affect Services, one on each line.
func sysctls(root string) []byte {
	var b bytes.Buffer
	for _, pattern := range []string{
		"net/ipv4/ip_forward", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/route_localnet", "net/ipv4/ip_local_port_range",
		"net/ipv4/ip_local_reserved_ports", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6", "net/netfilter/nf_conntrack_*",
		"net/bridge/bridge-nf-call-*", "net/core/wmem_max", "net/core/rmem_max", "kernel/osrelease",
	} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			continue
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				text = []byte(err.Error())
			}
			name, _ := filepath.Rel(root, f)
			fmt.Fprintf(&b, "%s = %s\n", name, strings.Join(strings.Fields(string(text)), " "))
		}
	}
	return b.Bytes()
}
