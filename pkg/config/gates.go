package config

import (
	_ "embed"
	"strings"

	"k8s.io/component-base/featuregate"
)

// gatesText lists the feature gates of kube-proxy v1.36.3, of which all but a few are about other programs; it is made by
// test/kubernetes/gates.
//
//go:embed gates.txt
var gatesText string

// Gates whose setting acts here.
const (
	// AllowServiceExternalIPs: without it, spec.externalIPs of Services is ignored.
	AllowServiceExternalIPs featuregate.Feature = "AllowServiceExternalIPs"
	// ComponentFlagz and ComponentStatusz: without them, there is no /flagz or /statusz.
	ComponentFlagz   featuregate.Feature = "ComponentFlagz"
	ComponentStatusz featuregate.Feature = "ComponentStatusz"
)

// newGates returns kube-proxy's feature gates, set as the map says. Unknown and locked ones are an error.
func newGates(set map[string]bool) (featuregate.FeatureGate, error) {
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
			specs[name] = spec // the two come with every set of gates
		}
	}
	if err := gates.Add(specs); err != nil {
		return nil, err
	}
	return gates, gates.SetFromMap(set)
}
