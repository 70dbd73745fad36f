package watch

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Config configures a source of API objects.
type Config struct {
	// Client is the client of the API server. Only [NewInformers] uses it.
	Client *kubeapi.Client
	// Folder is the path of the folder of manifests. Only the package manifests uses it.
	Folder string
	// NodeName is the name of this Node.
	NodeName string
	// ServiceProxyName selects Services by their label service.kubernetes.io/service-proxy-name. If it is empty, the
	// source selects Services without the label.
	ServiceProxyName string
	// HostPorts reads the pods of this node, for their host ports.
	HostPorts bool
	// Zones stores the zones of endpoints, too.
	Zones bool
	// Limits are the limits of one Service. The source does not store lists and texts above them.
	Limits model.Limits
	// Tracker receives the name of each changed object.
	Tracker *track.Tracker
	// Failed, if not nil, is called from any goroutine each time a list or watch fails, with the resource and the
	// error. The regular end of a watch is not a failure.
	Failed func(resource string, err error)
	// Succeeded, if not nil, is called from any goroutine each time the API server has accepted a watch of a resource.
	Succeeded func(resource string)
	// SnapshotDir is the folder of the snapshot; empty for none. Cluster identifies the cluster without a request to
	// it.
	SnapshotDir, Cluster string
	// Serves reports whether rules of an earlier process serve. Saved receives the time of each snapshot that was
	// written. Unconfirmed receives whether the objects of a snapshot are served without confirmation. Adopts reports
	// whether this process starts with rules of an earlier process that served just before. All four may be nil.
	Serves      func() bool
	Adopts      func() bool
	Saved       func(time.Time)
	Unconfirmed func(bool)
	// Report, if not nil, is called from any goroutine for each object or file that cannot be used.
	Report func(model.Problem)
}

func (c *Config) report() func(model.Problem) {
	if c.Report == nil {
		return func(model.Problem) {}
	}
	return c.Report
}

func (c *Config) transformer() transformer {
	stored := model.Stored{Zones: c.Zones, Pods: c.Folder != ""}
	podsOf := ""
	if c.HostPorts {
		podsOf = c.NodeName
	}
	return transformer{c.report(), podsOf, c.ServiceProxyName, c.Limits.OrDefault(), stored}
}
