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

// Without returns options for tables that use none of the missing features. If a setting of Services needs a missing
// feature, the options have the feature in words. If all Services need it, its family has no table. unserved then
// names these features and the fix; otherwise, it is nil.
func Without(o plan.Options, lacks []probe.Missing) (served plan.Options, unserved error) {
	for _, setting := range []struct {
		probe.Setting
		lack *string
	}{
		{probe.Algorithms, &o.Lacks.Hash}, {probe.Limits, &o.Lacks.Connlimit},
		{probe.Timeouts, &o.Lacks.Timeouts}, {probe.DirectReturn, &o.Lacks.Dup},
	} {
		if missing := probe.For(setting.Setting, lacks); len(missing) > 0 {
			what, _ := probe.Advice(missing)
			*setting.lack = what + "; kube-nftproxy preflight on the node prints the fix"
		}
	}
	o.DirectReturn = o.DirectReturn && o.Lacks.Dup == ""
	o.Families = slices.Clone(o.Families)
	required := probe.Required(lacks)
	for _, m := range required {
		o.Families = slices.DeleteFunc(o.Families, func(f inet.Family) bool { return f == m.Family })
	}
	if len(required) > 0 {
		what, fix := probe.Advice(required)
		unserved = fmt.Errorf("%s: %s", what, fix)
	}
	return o, unserved
}
