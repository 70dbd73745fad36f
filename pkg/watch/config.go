package watch

import (
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Config says what to watch and whom to tell.
type Config struct {
	// Client is the API server's client; only [NewInformers] uses it.
	Client kubernetes.Interface
	// Connection, unless nil, is how Services and EndpointSlices are watched: what comes as protobuf isn't decoded, but stripped
	// as it is. Client watches them otherwise.
	Connection *rest.Config
	// Folder is where manifests are; only [NewManifests] uses it.
	Folder string
	// NodeName is the name of the Node whose proxy this is.
	NodeName string
	// Tracker is told the name of everything that changes.
	Tracker *track.Tracker
	// Failed, unless nil, is called, from any goroutine, with the name of a resource and the reason each time that the API server
	// doesn't give it. That a watch ends is no failure.
	Failed func(resource string, err error)
	// Report is called, from any goroutine, for each object or file that cannot be used; nil means that nobody asks.
	Report func(model.Problem)
}

func (c *Config) report() func(model.Problem) {
	if c.Report == nil {
		return func(model.Problem) {}
	}
	return c.Report
}
