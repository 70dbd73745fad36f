package config

import (
	_ "embed"
	"slices"
	"strings"

	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// gatesText lists the feature gates of kube-proxy v1.37.2. Most of them affect only other programs.
// test/kubernetes/gates generates the list.
//
//go:embed gates.txt
var gatesText string

// Kubernetes is the version of Kubernetes whose kube-proxy this program replaces.
const Kubernetes = "1.37"

// Gates with an effect here.
const (
	// AllowServiceExternalIPs: without it, spec.externalIPs of Services is ignored.
	AllowServiceExternalIPs featuregate.Feature = "AllowServiceExternalIPs"
	// ComponentFlagz and ComponentStatusz: without them, there is no /flagz or /statusz.
	ComponentFlagz   featuregate.Feature = "ComponentFlagz"
	ComponentStatusz featuregate.Feature = "ComponentStatusz"
	// LocalhostNodePorts: if it is set to false, node ports are not served on loopback, even if nodePortAddresses has
	// "localhost". Unlike in kube-proxy, its default (false) has no effect.
	LocalhostNodePorts featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"
	// NativeHistograms: histograms of /metrics have native buckets too.
	NativeHistograms featuregate.Feature = "NativeHistograms"
)

// acting returns the gates with an effect here: the constants above, the gates that k8s.io/component-base reads for
// logging, and the gates of client-go, except WatchListClient: the program always uses lists.
func acting() []featuregate.Feature {
	ofClient := slices.DeleteFunc(clientGates(),
		func(g featuregate.Feature) bool { return g == featuregate.Feature(clientfeatures.WatchListClient) })
	return append(ofClient,
		AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, LocalhostNodePorts, NativeHistograms,
		logsapi.ContextualLogging, logsapi.LoggingAlphaOptions, logsapi.LoggingBetaOptions)
}

// gateNames is a client-go registry that only records names.
type gateNames []featuregate.Feature

// Add implements features.Registry of client-go.
func (n *gateNames) Add(gates map[clientfeatures.Feature]clientfeatures.FeatureSpec) error {
	for name := range gates {
		*n = append(*n, featuregate.Feature(name))
	}
	slices.Sort(*n)
	return nil
}

func clientGates() []featuregate.Feature {
	var names gateNames
	if err := clientfeatures.AddFeaturesToExistingFeatureGates(&names); err != nil {
		panic(err) // impossible: gateNames.Add returns no error
	}
	return names
}

// forClient adapts gates to client-go's interface.
type forClient struct{ featuregate.FeatureGate }

// Enabled implements features.Gates of client-go.
func (g forClient) Enabled(name clientfeatures.Feature) bool {
	return g.FeatureGate.Enabled(featuregate.Feature(name))
}

// ApplyGates sets the feature gates of client-go. Call it before a client is created.
func (o *Options) ApplyGates() { clientfeatures.ReplaceFeatureGates(forClient{o.Gates}) }

// Gate is a feature gate with its setting.
type Gate struct {
	Name string
	// Stage is ALPHA, BETA, DEPRECATED, or empty for general availability.
	Stage   string
	Enabled bool
}

// ActingGates returns the feature gates with an effect here.
func (o *Options) ActingGates() []Gate {
	all := o.Gates.GetAll()
	var gates []Gate
	for _, name := range acting() {
		gates = append(gates, Gate{string(name), string(all[name].PreRelease), o.Gates.Enabled(name)})
	}
	return gates
}

// newGates returns kube-proxy's feature gates with the given settings, and the names of unknown gates, sorted: a newer
// or an older kube-proxy may have them. A changed locked gate is an error.
func newGates(set map[string]bool) (all featuregate.MutableFeatureGate, unknown []string, err error) {
	gates := featuregate.NewFeatureGate()
	specs := map[featuregate.Feature]featuregate.FeatureSpec{}
	for line := range strings.Lines(gatesText) {
		f := strings.Fields(line)
		spec := featuregate.FeatureSpec{Default: f[2] == "true", LockToDefault: len(f) > 3}
		switch f[1] {
		case "ALPHA":
			spec.PreRelease = featuregate.Alpha
		case "BETA":
			spec.PreRelease = featuregate.Beta
		case "DEPRECATED":
			spec.PreRelease = featuregate.Deprecated
		}
		if name := featuregate.Feature(f[0]); name != "AllAlpha" && name != "AllBeta" {
			specs[name] = spec // every set of gates has these two
		}
	}
	if err := gates.Add(specs); err != nil {
		return nil, nil, err
	}
	known := map[string]bool{}
	specs = gates.GetAll() // with AllAlpha and AllBeta
	for name, value := range set {
		if _, ok := specs[featuregate.Feature(name)]; ok {
			known[name] = value
		} else {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return gates, unknown, gates.SetFromMap(known)
}
