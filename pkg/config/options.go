package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // the logging format json
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Default ports of the flags --healthz-port and --metrics-port (deprecated), and of bare addresses.
const (
	defaultHealthzPort = 10256
	defaultMetricsPort = 10249
)

// Options are the command line, and after [Options.Complete] the resulting configuration.
type Options struct {
	// Config is the configuration from the flags or the file, with defaults.
	Config *kubeproxy.KubeProxyConfiguration
	// File is the configuration file, WriteTo the file for the effective configuration; empty for none.
	File, WriteTo string
	// Master is the API server's URL, or a comma-separated list of URLs. It overrides the URL of the kubeconfig file.
	Master string
	// StartupTaint is the key of a taint that the program removes from the Node after the first sync; empty for none.
	StartupTaint string
	// SnapshotDir is the folder of the snapshot of API objects; empty for none.
	SnapshotDir string
	// ServiceProxyName is the value of the label service.kubernetes.io/service-proxy-name of the Services to serve,
	// beside another proxy. If it is empty, the program serves the Services without the label.
	ServiceProxyName string
	// Manifests is a folder of objects that replaces the API server.
	Manifests string
	// ControlSocket is the path of the socket for commands on this node; empty for none.
	ControlSocket string
	// Cleanup and InitOnly make the program do one task instead of serving. ForceCleanup allows Cleanup while a process
	// of the program runs on the node.
	Cleanup, InitOnly, ForceCleanup bool
	// MetricsServices is the number of service ports with their own series in the metrics.
	MetricsServices int
	// TableFlags are the flags for the tables that have no field in the configuration.
	TableFlags
	// TerminateConnections is a model.Termination: the default of Services without an annotation for it.
	TerminateConnections string
	// Gates are kube-proxy's feature gates with the settings of the configuration.
	Gates featuregate.MutableFeatureGate
	// Notes list settings without effect, and the behaviour instead.
	Notes []Note

	// content is the content of File. reload is the value of --config-reload, and reloadJitter the longest delay before
	// an exit.
	content                  []byte
	reload                   string
	reloadJitter             time.Duration
	hostname                 string
	healthzPort, metricsPort int32
}

// Note describes a setting without the effect that an operator may expect.
type Note struct {
	// Subject is a field or a flag, Text the behaviour instead.
	Subject, Text string
	// Finding is set if the command status shows the note, too.
	Finding bool
}

// NewOptions returns options with the defaults of an empty file. [Options.AddFlags] sets those of the flags.
func NewOptions() *Options {
	return &Options{Config: defaultConfiguration(), TableFlags: TableFlags{CountConnections: true}}
}

// Complete derives the configuration from the parsed flags and the file (kube-proxy: Options.Complete). The file
// overrides all flags except --hostname-override, the logging flags, and flags without a field in the file. With a
// service-proxy name, the flags override the addresses of servers in the file.
func (o *Options) Complete(fs *pflag.FlagSet) error {
	if o.File != "" {
		var err error
		if o.content, err = os.ReadFile(o.File); err != nil {
			return err
		}
		c, notes, err := decode(o.content)
		if err != nil {
			return err
		}
		if err := logsFromFlags(fs, &c.Logging); err != nil {
			return err
		}
		if o.ServiceProxyName != "" {
			notes = append(notes, o.ownServers(fs, c)...)
		}
		o.Config, o.Notes = c, notes
	} else {
		o.applyFlags(fs)
		if o.ServiceProxyName != "" {
			o.ownServers(fs, o.Config)
		}
	}
	var unknown []string
	var err error
	if o.Gates, unknown, err = newGates(o.Config.FeatureGates); err != nil {
		return err
	}
	applyPlatformDefaults(o.Config)
	if o.hostname != "" {
		name := strings.ToLower(strings.TrimSpace(o.hostname))
		if name == "" {
			return errors.New("empty hostname-override is invalid")
		}
		o.Config.HostnameOverride = name
	}
	o.Notes = append(o.Notes, notes(o.Config, unknown)...)
	return nil
}

// Validate returns all errors in the completed options.
func (o *Options) Validate() error {
	errs := validate(o.Config, o.Gates)
	invalid := func(flag string, value any, why string) {
		errs = append(errs, field.Invalid(field.NewPath("--"+flag), value, why))
	}
	const notNegative = "must be greater than or equal to 0"
	if o.Manifests != "" {
		const needsServer = "requires an API server, and --manifests is set"
		if o.Config.ClientConnection.Kubeconfig != "" || o.Master != "" {
			invalid("manifests", o.Manifests, "cannot be combined with an address of an API server")
		}
		if o.StartupTaint != "" {
			invalid("startup-taint", o.StartupTaint, needsServer)
		}
		if o.SnapshotDir != "" {
			invalid("snapshot-dir", o.SnapshotDir, needsServer)
		}
	}
	if problems := validation.IsQualifiedName(o.StartupTaint); o.StartupTaint != "" && len(problems) > 0 {
		invalid("startup-taint", o.StartupTaint, strings.Join(problems, "; "))
	}
	if o.ServiceProxyName != "" {
		for _, problem := range proxyNameProblems(o.ServiceProxyName) {
			invalid("service-proxy-name", o.ServiceProxyName, problem)
		}
		if o.InitOnly {
			invalid("init-only", true, "cannot be combined with --service-proxy-name: the other proxy sets the sysctls")
		}
	}
	if o.reload != reloadNever && o.reload != reloadExit {
		errs = append(errs, field.NotSupported(field.NewPath("--config-reload"), o.reload,
			[]string{reloadNever, reloadExit}))
	}
	if o.reloadJitter < 0 {
		invalid("config-reload-jitter", o.reloadJitter.String(), notNegative)
	}
	if _, err := model.ParseUnusedPorts(o.RefuseUnusedPorts); err != nil {
		invalid("refuse-unused-ports", o.RefuseUnusedPorts, err.Error())
	}
	if _, err := model.ParseNodeNetworks(o.DirectNodeCIDRs); err != nil {
		invalid("direct-server-return-node-cidrs", o.DirectNodeCIDRs, err.Error())
	}
	if !slices.Contains(model.Pings, model.Ping(o.AnswerPing)) {
		errs = append(errs, field.NotSupported(field.NewPath("--answer-ping"), model.Ping(o.AnswerPing), model.Pings))
	}
	if _, err := model.ParseTermination(o.TerminateConnections); err != nil {
		invalid("terminate-connections", o.TerminateConnections, err.Error())
	}
	if o.MetricsServices < 0 {
		invalid("metrics-services", o.MetricsServices, notNegative)
	}
	return errs.ToAggregate()
}

// applyFlags applies the flags that do not set one field of the configuration directly.
func (o *Options) applyFlags(fs *pflag.FlagSet) {
	c := o.Config
	if o.WriteTo == "" {
		c.HealthzBindAddress = addressOf(c.HealthzBindAddress, o.healthzPort)
		c.MetricsBindAddress = addressOf(c.MetricsBindAddress, o.metricsPort)
	}
	sync, min := periodsOf(c, c.Mode)
	ofMode := "iptables-"
	if c.Mode == modeIPVS {
		ofMode = "ipvs-"
	}
	for _, prefix := range []string{ofMode, ""} { // the flags without the mode take precedence
		for flag, to := range map[string]*metav1.Duration{"sync-period": sync, "min-sync-period": min} {
			if fs.Changed(prefix + flag) {
				to.Duration, _ = fs.GetDuration(prefix + flag) // the flag has this type
			}
		}
	}
	if c.Mode == modeNFTables {
		c.NFTables.MasqueradeAll = c.IPTables.MasqueradeAll
		c.IPTables.MasqueradeAll = false
	}
}

// ownServers sets the addresses of the servers of an instance with a service-proxy name. Only flags set them: the
// addresses of the file and the defaults belong to the other proxy. It returns a note for each ignored address of the
// file.
func (o *Options) ownServers(fs *pflag.FlagSet, c *kubeproxy.KubeProxyConfiguration) (notes []Note) {
	for _, server := range []struct {
		flag, field string
		port        int32
		own         string
		in          *string
	}{
		{"healthz", "healthzBindAddress", o.healthzPort, o.Config.HealthzBindAddress, &c.HealthzBindAddress},
		{"metrics", "metricsBindAddress", o.metricsPort, o.Config.MetricsBindAddress, &c.MetricsBindAddress},
	} {
		given := fs.Changed(server.flag + "-bind-address")
		*server.in = ""
		if given && server.own != "" {
			*server.in = addressOf(server.own, server.port)
		} else if !given && o.File != "" {
			notes = append(notes, Note{Subject: server.field, Text: "belongs to the other proxy and is ignored, " +
				"because --service-proxy-name is set; use --" + server.flag + "-bind-address"})
		}
	}
	return notes
}

// reserved are words in the names of other tables of the program.
var reserved = []string{"loopback", "probe", "trace"}

// proxyNameProblems returns the reasons why a service-proxy name is invalid.
func proxyNameProblems(name string) []string {
	problems := validation.IsDNS1123Label(name)
	for _, word := range strings.Split(name, "-") {
		if slices.Contains(reserved, word) {
			problems = append(problems, fmt.Sprintf("must not contain the word %q, which is in the names of other tables "+
				"of the program", word))
		}
	}
	return problems
}

// addressOf returns the address of a server from its two flags. A deprecated port of 0 turns the server off.
func addressOf(address string, port int32) string {
	if port == 0 {
		return ""
	}
	return withPort(address, port)
}

// logsFromFlags gives logging flags precedence over the file. Patterns of --vmodule precede the file's.
func logsFromFlags(fs *pflag.FlagSet, c *logsapi.LoggingConfiguration) error {
	var own pflag.FlagSet
	logsapi.AddFlags(c, &own)
	file := c.VModule
	c.VModule = nil
	var errs []error
	own.VisitAll(func(f *pflag.Flag) {
		given := fs.Lookup(f.Name)
		if given == nil || !given.Changed {
			return
		}
		if err := f.Value.Set(given.Value.String()); err != nil {
			errs = append(errs, fmt.Errorf("read flag --%s: %w", f.Name, err))
		}
	})
	c.VModule = append(c.VModule, file...)
	return errors.Join(errs...)
}
