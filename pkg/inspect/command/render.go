package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/manifests"
)

// renderCommand prints the tables for manifests.
func renderCommand() *cobra.Command {
	o := config.NewOptions()
	var from string
	cmd := &cobra.Command{
		Use:   "render -f MANIFESTS",
		Short: "Print the tables for manifests, as nft text",
		Long: `render prints the tables that the daemon would program on this node for the given Services and EndpointSlices. "nft -c -f" accepts
the output. The command assumes a kernel with all features. It changes nothing, and queries neither the daemon nor the API server. It
accepts all flags of the daemon: to see the tables of a daemon's command line, insert "render -f MANIFESTS" before its flags.`,
		Example: `  kube-nftproxy render -f manifests/ --cluster-cidr=10.244.0.0/16
  kubectl get services,endpointslices,servicecidrs -A -o yaml | kube-nftproxy render -f - --config=/var/lib/kube-proxy/config.conf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return errors.New("no manifests: set -f FOLDER, -f FILE, or -f - for standard input")
			}
			p, err := planManifests(o, cmd, from, nil, nil)
			if err != nil {
				return err
			}
			return render(cmd.OutOrStdout(), p)
		},
	}
	manifestFlags(cmd, o, &from)
	return cmd
}

// manifestFlags adds -f, and the daemon's flags.
func manifestFlags(cmd *cobra.Command, o *config.Options, from *string) {
	o.AddFlags(cmd.Flags())
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	cmd.Flags().StringVarP(from, "filename", "f", "", "Folder or file of manifests (Service, EndpointSlice, Node, "+
		"ServiceCIDR; YAML or JSON), or - for standard input.")
}

// render writes the tables of a plan.
func render(to io.Writer, p *plan.Planner) error {
	elements := elementsOf(p)
	for _, t := range p.Tables() {
		if _, err := io.WriteString(to, read.Declare(t, elements[t.Family])); err != nil {
			return err
		}
	}
	return nil
}

// elementsOf returns the elements of a plan by family and set, without the state element: it contains a secret key.
func elementsOf(p *plan.Planner) map[inet.Family]map[string][]nft.Element {
	all := map[inet.Family]map[string][]nft.Element{inet.IPv4: {}, inet.IPv6: {}}
	p.Elements(func(e *nft.Element) { all[e.Set.Family][e.Set.Name] = append(all[e.Set.Family][e.Set.Name], *e) })
	return all
}

// kernelReader is the part of [apply.Kernel] that a plan needs.
type kernelReader interface {
	Lacks(plan.Options) ([]probe.Missing, error)
	Recall(*plan.Planner, []*model.Service) error
}

// planManifests plans manifests as the daemon with these flags would. It takes missing objects from r, unless r is nil.
// It takes the missing features, and the numbers of service ports, from k. If k is nil, the kernel has all features and
// no tables.
func planManifests(o *config.Options, cmd *cobra.Command, from string, r *running, k kernelReader) (*plan.Planner, error) {
	if err := errors.Join(o.Complete(cmd.Flags()), o.Validate()); err != nil {
		return nil, err
	}
	s, err := settings.New(o, cmd.Flags())
	if err != nil {
		return nil, err
	}
	report := func(p model.Problem) { warn(cmd.ErrOrStderr(), p) }
	source := manifests.New(watch.Config{
		Folder: from, NodeName: s.NodeName, HostPorts: s.HostPorts, ServiceProxyName: s.ServiceProxyName,
		Tracker: track.New(time.Now(), time.Now), Limits: s.ModelOptions().Limits, Report: report,
	})
	if from != "" {
		if err := load(source, from, cmd.InOrStdin()); err != nil {
			return nil, err
		}
	}
	if r != nil {
		if err := r.complete(source, from == ""); err != nil {
			return nil, err
		}
	}
	if k != nil && source.Node() == nil {
		report(model.Problem{Kind: "Node", Name: types.NamespacedName{Name: s.NodeName}, Reason: "is not in the manifests: its addresses, zone and pod CIDRs are unknown"})
	}
	starts, err := r.starts()
	if err != nil {
		return nil, err
	}
	return planObjects(s, source, cmd.ErrOrStderr(), starts, k)
}

func warn(to io.Writer, p model.Problem) {
	fmt.Fprintf(to, "Warning: %s %s %s: %s\n", p.Kind, p.Name, p.Field, p.Text())
}

// load makes a source read a folder, a file or standard input. It writes no temporary file, because the file system of
// a pod is read-only.
func load(source *manifests.Source, from string, stdin io.Reader) error {
	if from == "-" {
		b, err := io.ReadAll(stdin)
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
		source.LoadFrom("standard input", b)
		return nil
	}
	info, err := os.Stat(from)
	if err == nil && info.IsDir() {
		return source.Load()
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	source.LoadFrom(from, b)
	return nil
}

// planObjects plans all objects of a source, as the daemon does at its start, but with the given starting endpoints.
func planObjects(s *settings.Settings, source *manifests.Source, warnings io.Writer, starts map[types.NamespacedName]*model.Starts, k kernelReader,
) (*plan.Planner, error) {
	options := s.PlanOptions(host.Families())
	var recall settings.Recall
	if k != nil {
		lacks, err := k.Lacks(options)
		if err != nil { // as the daemon, assume that the kernel lacks nothing
			fmt.Fprintf(warnings, "Warning: cannot check the kernel for missing features: %v\n", err)
		}
		if options, err = apply.Without(options, lacks); err != nil {
			if len(options.Families) == 0 {
				return nil, fmt.Errorf("no IP family can be served: %w", err)
			}
			fmt.Fprintf(warnings, "Warning: only Services of %v are served: %v\n", options.Families, err)
		}
		recall = k.Recall
	}
	p := plan.New(options)
	facts, problems, err := s.Facts(source, options.Families)
	if err != nil {
		return nil, err
	}
	more, err := s.Plan(p, options.Families, source, &facts, starts, recall)
	if err != nil {
		return nil, err
	}
	for _, problem := range append(problems, more...) {
		warn(warnings, problem)
	}
	apply.Fit(p)
	return p, nil
}
