package command

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/compare"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/manifests"
)

// diffCommand compares the plan with the kernel's tables.
func diffCommand() *cobra.Command {
	o := config.NewOptions()
	var out output
	var from string
	cmd := &cobra.Command{
		Use:   "diff [-f MANIFESTS]",
		Short: "Compare the tables for manifests or for another configuration with the tables in the kernel",
		Long: `diff plans the given manifests as the running program would, and compares the plan with the tables in the kernel
of this node. The output begins with the Services that differ. Rules and elements follow: those with "-" are only in the
kernel, those with "+" only in the plan. diff ignores elements that packets add, and the element "state". The plan uses
only features that this kernel has. To find them, diff may load modules of nftables.

diff uses the configuration of the running program. To see the effect of a change before you make it, add flags of the daemon: each
replaces one setting, and --config replaces the whole file (- for standard input). Without -f, diff uses the objects of the running
program. With -f, it uses the Node and the ServiceCIDRs of the running program if the manifests have none.

To find errors of the running program itself, use verify. If no program runs, set -f and all flags of the daemon.`,
		Example: `  kube-nftproxy diff --nodeport-addresses=primary
  kube-nftproxy diff --config new.conf
  kubectl nftproxy node-1 diff --config - < new.conf
  kubectl get services,endpointslices -A -o yaml | kube-nftproxy diff -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.File == "-" {
				if from == "-" {
					return errors.New("-f and --config cannot both be standard input")
				}
				o.File = "/proc/self/fd/0"
			}
			kernel, err := apply.Open()
			if err != nil {
				return err
			}
			defer kernel.Close() //nolint:errcheck // read only
			r, err := inherit(o, cmd, from)
			if err != nil {
				return err
			}
			p, err := planManifests(o, cmd, from, r, kernel)
			if err != nil {
				return err
			}
			v, err := diff(p)
			if err != nil {
				return err
			}
			return out.answer(cmd.OutOrStdout(), v, v.Text, len(v.Differences) > 0)
		},
	}
	manifestFlags(cmd, o, &from)
	for name, text := range map[string]string{"config": "", "control-socket": socketUsage, "service-proxy-name": proxyNameUsage} {
		shown := cmd.Flags().Lookup(name)
		shown.Hidden, shown.Usage = false, cmp.Or(text, shown.Usage)
	}
	out.flags(cmd)
	return cmd
}

// running is the running program. It provides settings and objects for a plan that the command line does not contain.
type running struct {
	ctx    context.Context
	client *control.Client
}

// inherit applies the settings of the running program to the options. If no program answers, it returns nil, or an
// error unless the command line has manifests and flags of the daemon.
func inherit(o *config.Options, cmd *cobra.Command, from string) (*running, error) {
	q := question{socket: o.ControlSocket, proxyName: o.ServiceProxyName}
	r := &running{cmd.Context(), q.patient()}
	var s config.Running
	err := r.client.Get(r.ctx, control.PageSettings, &s)
	if err == nil {
		return r, o.Inherit(cmd.Flags(), &s)
	}
	given := o.File != ""
	cmd.Flags().Visit(func(f *pflag.Flag) { given = given || f.Hidden }) // the flags of the daemon are hidden
	if from == "" || !given {
		return nil, fmt.Errorf("%w; without a running program, set -f and the flags of the daemon, such as "+
			"--config", err)
	}
	return nil, nil
}

// complete adds objects of the running program to a source: the Node and the ServiceCIDRs if the source has none and,
// if all is true, Services with their EndpointSlices.
func (r *running) complete(source *manifests.Source, all bool) error {
	var kinds []string
	if source.Node() == nil {
		kinds = append(kinds, "kind", control.KindNode)
	}
	if len(source.ServiceCIDRs()) == 0 {
		kinds = append(kinds, "kind", control.KindServiceCIDR)
	}
	if all {
		kinds = append(kinds, "kind", control.KindService)
	}
	var objects bytes.Buffer
	if err := r.client.Copy(r.ctx, &objects, control.PageObjects, kinds...); err != nil {
		return err
	}
	source.LoadMore("objects of the running program", objects.Bytes())
	return nil
}

// starts returns the starting endpoints of the running program. There are none without a running program, or if that
// program has no slow start.
func (r *running) starts() (map[types.NamespacedName]*model.Starts, error) {
	if r == nil {
		return nil, nil
	}
	var all map[string][]model.Share
	if err := r.client.Get(r.ctx, control.PageStarts, &all); err != nil {
		if missing := control.NotFound(""); !errors.As(err, &missing) {
			return nil, err
		}
	}
	starts := make(map[types.NamespacedName]*model.Starts, len(all))
	for key, shares := range all {
		namespace, name, _ := strings.Cut(key, "/")
		starts[types.NamespacedName{Namespace: namespace, Name: name}] = model.StartsOf(shares)
	}
	return starts, nil
}

// diff compares a plan with the kernel.
func diff(p *plan.Planner) (*view.Diff, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // read only
	return compare.Diff(conn, p.Tables(), elementsOf(p), plan.StateSet)
}
