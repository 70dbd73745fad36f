package probe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Missing is a feature that the kernel lacks.
type Missing struct {
	Family inet.Family
	feature
	// Err is the kernel's answer.
	Err error
}

// feature is a kernel feature that tables use.
type feature struct {
	// name is in nft's syntax if possible.
	name string
	// option is the kernel's configuration option without CONFIG_, module the module that may contain the feature. Both
	// are empty for a feature of every supported kernel, and module for a part of another module.
	option, module string
}

// Setting is a setting of Services that needs a feature of the kernel.
type Setting struct {
	// Name names the setting. Without is the effect if the kernel lacks the feature.
	Name, Without string
}

// The settings that need a feature.
var (
	Algorithms   = Setting{"algorithms", "the algorithm of all Services is random"}
	Limits       = Setting{"connection limits", "no endpoint has a connection limit"}
	Timeouts     = Setting{"timeouts", "all connections have the timeouts of the node"}
	DirectReturn = Setting{"direct server return", "no Service has direct server return"}

	Settings = []Setting{Algorithms, Limits, Timeouts, DirectReturn}
)

// settings has the settings by the kernel's options of their features.
var settings = map[string]Setting{
	hashOption: Algorithms, connlimitOption: Limits, timeoutsOption: Timeouts, objrefOption: Timeouts,
	dupOption + "4": DirectReturn, dupOption + "6": DirectReturn,
}

// Setting returns the setting that needs the feature. It is the zero value if all Services need the feature.
func (m Missing) Setting() Setting { return settings[m.option] }

// Required returns the features that all Services of their family need.
func Required(list []Missing) []Missing { return For(Setting{}, list) }

// For returns the features that a setting needs.
func For(s Setting, list []Missing) (needed []Missing) {
	for _, m := range list {
		if m.Setting() == s {
			needed = append(needed, m)
		}
	}
	return needed
}

// hashOption and connlimitOption are the kernel's options of jhash and connlimit. dupOption is the option of dup,
// without the number of the family. timeoutsOption is the option of ct timeout, objrefOption that of its expression.
const (
	hashOption, connlimitOption, dupOption = "NFT_HASH", "NFT_CONNLIMIT", "NFT_DUP_IPV"
	timeoutsOption, objrefOption           = "NF_CONNTRACK_TIMEOUT", "NFT_OBJREF"
)

// timeoutsFeature are objects of ct timeout. They are a part of the module nft_ct, which other features need, too.
var timeoutsFeature = feature{name: "ct timeout", option: timeoutsOption}

// String names the feature and its option and module.
func (m Missing) String() string {
	switch {
	case m.option == "":
		return fmt.Sprintf("%s (%v)", m.name, m.Err)
	case m.module == "":
		return fmt.Sprintf("%s (CONFIG_%s)", m.name, m.option)
	}
	return fmt.Sprintf("%s (module %s, CONFIG_%s)", m.name, m.module, m.option)
}

// Advice returns the missing features in words, and the fix.
func Advice(list []Missing) (what, fix string) {
	var names, modules []string
	for _, m := range list {
		if name := m.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
		if m.module != "" && !slices.Contains(modules, m.module) {
			modules = append(modules, m.module)
		}
	}
	fix = "use a newer kernel, or one that was built with this"
	if len(modules) > 0 {
		fix = fmt.Sprintf("on the node, run modprobe -a %s; if there are no such modules, install the package that "+
			"has them, or %s",
			strings.Join(modules, " "), fix)
	}
	return "the kernel lacks " + strings.Join(names, ", "), fix
}

func chainFeature(c *nft.Chain) feature {
	if c.Type == "filter" {
		return feature{name: "chains of type filter"}
	}
	return feature{"chains of type " + c.Type, "NFT_NAT", "nft_chain_nat"}
}

// setFeature distinguishes sets by the kernel's backend, and by the properties of their elements.
func setFeature(s *nft.Set) feature {
	var words []string
	add := func(yes bool, word string) {
		if yes {
			words = append(words, word)
		}
	}
	add(s.Interval && len(s.Key) > 1, "concatenated")
	add(s.Interval, "ranges")
	add(s.Verdict, "verdicts")
	add(s.IsMap() && !s.Verdict, "data")
	add(s.Dynamic, "elements from rules")
	add(s.Timeout > 0, "timeouts")
	add(s.Counter, "counters")
	add(s.Size > 0, "a size")
	if s.MaxConnections > 0 {
		return feature{"connlimit", connlimitOption, "nft_connlimit"}
	}
	if len(words) == 0 {
		words = []string{"keys"}
	}
	return feature{name: "sets with " + strings.Join(words, ", ")}
}

// expressionFeature distinguishes expressions by the kernel's module, and by parts that later kernels added.
func expressionFeature(f inet.Family, e expr.Any) feature {
	suffix := [...]string{"4", "6"}[f]
	switch e := e.(type) {
	case *expr.Meta:
		return feature{name: metaName(e)}
	case *expr.Ct:
		return feature{"ct status", "NFT_CT", "nft_ct"}
	case *expr.Fib:
		return feature{"fib", "NFT_FIB_IPV" + suffix, "nft_fib_ipv" + suffix}
	case *expr.NAT:
		return feature{"dnat", "NFT_NAT", "nft_nat"}
	case *expr.Masq:
		return feature{"masquerade", "NFT_MASQ", "nft_masq"}
	case *expr.Numgen:
		return feature{"numgen random", "NFT_NUMGEN", "nft_numgen"}
	case *expr.Hash:
		return feature{"jhash", hashOption, "nft_hash"}
	case *expr.Dup:
		return feature{"dup", dupOption + suffix, "nft_dup_ipv" + suffix}
	case *expr.Payload:
		if e.OperationType == expr.PayloadWrite {
			return feature{name: "payload set"}
		}
	case *expr.Reject:
		return feature{"reject", "NFT_REJECT_IPV" + suffix, "nft_reject_ipv" + suffix}
	case *expr.Objref:
		return feature{"objref", objrefOption, "nft_objref"}
	case *expr.Dynset:
		return feature{name: fmt.Sprintf("dynset operation %d", e.Operation)}
	case *expr.Lookup:
		if e.IsDestRegSet {
			return feature{name: "lookup in maps"}
		}
	}
	return feature{name: strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr."))}
}

func metaName(e *expr.Meta) string {
	name, known := map[expr.MetaKey]string{
		expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyPRIORITY: "priority", expr.MetaKeyMARK: "mark",
		expr.MetaKeyIIFNAME: "iifname",
	}[e.Key]
	if !known {
		name = fmt.Sprint(e.Key)
	}
	if e.SourceRegister {
		name += " set"
	}
	return "meta " + name
}
