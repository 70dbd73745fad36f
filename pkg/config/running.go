package config

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// TableFlags are flags that affect the tables, and have no field in the KubeProxyConfiguration.
type TableFlags struct {
	// Limits override the default limits of one Service, or of the node, by name.
	Limits map[string]int `json:"limits,omitempty"`
	// CountConnections enables counters of connections to Services, CountZones also those of the zones of endpoints.
	CountConnections bool `json:"countConnections"`
	CountZones       bool `json:"countZones,omitempty"`
	// RefuseUnusedPorts and AnswerPing are the values of the flags with these names, see [model.ParseUnusedPorts] and
	// [model.Ping].
	RefuseUnusedPorts string `json:"refuseUnusedPorts,omitempty"`
	AnswerPing        string `json:"answerPing,omitempty"`
	// DirectReturn permits direct server return, and DirectDefault makes it the default of Services.
	DirectReturn  bool `json:"directServerReturn,omitempty"`
	DirectDefault bool `json:"directServerReturnDefault,omitempty"`
	// DirectNodeCIDRs are the networks of all nodes, see [model.ParseNodeNetworks].
	DirectNodeCIDRs string `json:"directServerReturnNodeCIDRs,omitempty"`
	// HostPorts serves the host ports of this node's pods.
	HostPorts bool `json:"hostPorts,omitempty"`
}

// Running is the version and the configuration in effect of a running program.
type Running struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Node is the name of its Node, Config its KubeProxyConfiguration as YAML.
	Node   string `json:"node"`
	Config string `json:"config"`
	TableFlags
}

// Inherit takes the settings of a running program for all flags that fs does not set. With --config, that file replaces
// the configuration of the running program. Call it before [Options.Complete].
func (o *Options) Inherit(fs *pflag.FlagSet, running *Running) error {
	if !fs.Changed("hostname-override") {
		o.hostname = running.Node
	}
	if !fs.Changed("limits") {
		o.Limits = running.Limits
	}
	if !fs.Changed("count-connections") {
		o.CountConnections, o.CountZones = running.CountConnections, running.CountZones
	}
	if !fs.Changed("direct-server-return") {
		o.DirectReturn, o.DirectDefault = running.DirectReturn, running.DirectDefault
	}
	if !fs.Changed("host-ports") {
		o.HostPorts = running.HostPorts
	}
	texts := map[string]string{
		"refuse-unused-ports": running.RefuseUnusedPorts, "answer-ping": running.AnswerPing,
		"direct-server-return-node-cidrs": running.DirectNodeCIDRs,
	}
	for flag, is := range texts {
		if is != "" && !fs.Changed(flag) {
			if err := fs.Set(flag, is); err != nil {
				return fmt.Errorf("read flag --%s of the running program: %w", flag, err)
			}
		}
	}
	if o.File != "" {
		return nil
	}
	c, _, err := decode([]byte(running.Config))
	if err != nil {
		return fmt.Errorf("read the configuration of the running program: %w", err)
	}
	own := *o.Config
	values := map[string]string{}
	fs.Visit(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	// The flags point into o.Config, so their values are set again.
	*o.Config = *c
	if o.Config.Mode == modeNFTables { // applyFlags moves it
		o.Config.IPTables.MasqueradeAll = o.Config.NFTables.MasqueradeAll
	}
	if fs.Changed("nodeport-addresses") {
		o.Config.NodePortAddresses = own.NodePortAddresses
	}
	if fs.Changed("iptables-masquerade-bit") {
		o.Config.IPTables.MasqueradeBit = own.IPTables.MasqueradeBit
	}
	for _, name := range planning {
		if value, given := values[name]; given {
			if err := fs.Set(name, value); err != nil {
				return fmt.Errorf("read flag --%s: %w", name, err)
			}
		}
	}
	return nil
}

// planning are the other flags for fields of the configuration that affect the tables.
var planning = []string{
	"feature-gates", "bind-address", "proxy-mode", "detect-local-mode", "pod-bridge-interface",
	"pod-interface-name-prefix", "masquerade-all", "cluster-cidr",
}
