package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// settings are the checked options, turned into what the parts of the program take.
type settings struct {
	*config.Options
	flags    *pflag.FlagSet
	nodeName string
	// hostFamilies are the IP families that the host had at the start, those that the kernel lacks something for among them.
	hostFamilies []model.Family
	// nodeIP is taken for the Node's address of its family; invalid for none.
	nodeIP netip.Addr
	// localPods tells how pods are recognised, except in mode NodeCIDR, where the Node says so.
	localPods [2]plan.LocalPods
	// nodePorts are the prefixes of addresses on which node ports are served; none stands for the primary addresses.
	nodePorts []netip.Prefix
	limits    model.Limits
	room      plan.Room
}

// newSettings takes options that have been validated.
func newSettings(o *config.Options, flags *pflag.FlagSet) (*settings, error) {
	s := &settings{Options: o, flags: flags}
	var err error
	if s.nodeName, err = nodeName(o.Config.HostnameOverride); err != nil {
		return nil, err
	}
	if addr, err := model.ParseAddr(o.Config.BindAddress); err == nil && !addr.IsUnspecified() {
		s.nodeIP = addr
	}
	if s.localPods, err = localPods(o); err != nil {
		return nil, err
	}
	if s.limits, s.room, err = limits(o.Limits); err != nil {
		return nil, fmt.Errorf("--limits: %w", err)
	}
	s.nodePorts, err = nodePortPrefixes(o.Config.NodePortAddresses)
	return s, err
}

// limits tells the limits of one Service from those of the node, whose names begin with "node-".
func limits(given map[string]int) (model.Limits, plan.Room, error) {
	service, node := map[string]int{}, map[string]int{}
	for name, n := range given {
		if strings.HasPrefix(name, "node-") {
			node[name] = n
		} else {
			service[name] = n
		}
	}
	l, err := model.LimitsOf(service)
	if err != nil {
		return l, plan.Room{}, err
	}
	r, err := plan.RoomOf(node)
	return l, r, err
}

// nodeName is the name by which kube-proxy too knows its Node: trimmed and in lower case.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find this node's name (give --hostname-override): %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", fmt.Errorf("find this node's name: %q is empty; give --hostname-override", override)
	}
	return name, nil
}

func localPods(o *config.Options) (pods [2]plan.LocalPods, err error) {
	c := o.Config
	switch c.DetectLocalMode {
	case config.BridgeInterface:
		p := plan.LocalPods{Interface: c.DetectLocal.BridgeInterface}
		return [2]plan.LocalPods{p, p}, nil
	case config.InterfaceNamePrefix:
		p := plan.LocalPods{Interface: c.DetectLocal.InterfaceNamePrefix, InterfacePrefix: true}
		return [2]plan.LocalPods{p, p}, nil
	case config.ClusterCIDR:
		if c.ClusterCIDR == "" {
			return pods, nil
		}
		for _, s := range strings.Split(c.ClusterCIDR, ",") {
			p, err := model.ParsePrefix(s)
			if err != nil {
				return pods, err
			}
			pods[model.FamilyOf(p.Addr())].Prefix = p
		}
	}
	return pods, nil
}

// nodePortPrefixes returns none for the primary addresses, and everything where nothing is said.
func nodePortPrefixes(list []string) ([]netip.Prefix, error) {
	if len(list) == 0 {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, nil
	}
	var out []netip.Prefix
	for _, s := range list {
		if s == config.Primary {
			return nil, nil
		}
		p, err := model.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
