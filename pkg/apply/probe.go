package apply

import (
	"fmt"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
)

// Lacks returns the features that tables with these options may use and that the kernel lacks. It changes nothing, and
// takes about ten milliseconds, mostly to wait for the kernel. It skips a family if an earlier process left a table of
// the same form. After an error, the missing features are unknown.
func (k *Kernel) Lacks(o plan.Options) ([]probe.Missing, error) {
	var unproven []*nft.Table
	for _, t := range plan.New(o).Rules().Samples() {
		left, _, err := k.leftState(t)
		if err != nil {
			return nil, err
		}
		if left == nil || left.layout != nft.Fingerprint(t) {
			unproven = append(unproven, t)
		}
	}
	if len(unproven) == 0 {
		return nil, nil
	}
	return probe.Run(k.conn, unproven)
}

// Without returns options for tables that use none of the missing features. If a missing feature is not optional, the
// family that needs it has no table. unserved then names these features and the fix; otherwise, it is nil.
func Without(o plan.Options, lacks []probe.Missing) (served plan.Options, unserved error) {
	o.Families = slices.Clone(o.Families)
	var required []probe.Missing
	for _, m := range lacks {
		switch {
		case m.Hash():
			o.WithoutHash = true
		case m.Connlimit():
			o.WithoutMaximum = true
		case m.Timeouts():
			o.WithoutTimeouts = true
		case m.Dup():
			o.DirectReturn = false
		default:
			required = append(required, m)
			o.Families = slices.DeleteFunc(o.Families, func(f inet.Family) bool { return f == m.Family })
		}
	}
	if len(required) > 0 {
		what, fix := probe.Advice(required)
		unserved = fmt.Errorf("%s: %s", what, fix)
	}
	return o, unserved
}
