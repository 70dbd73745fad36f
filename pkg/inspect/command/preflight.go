package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/manifests"
)

// preflightCommand checks a node before an installation.
func preflightCommand() *cobra.Command {
	var q question
	var name string
	var cidrs []string
	var hold bool
	site := doctor.Site{Lacks: lacks, Table: plan.TableName, First: plan.FirstPriority}
	cmd := &cobra.Command{
		Use: "preflight", Short: "Check a node before the installation of kube-nftproxy", Args: cobra.NoArgs,
		Long: "Check a node before the installation of kube-nftproxy.\n\n" +
			"The command checks the kernel and its features, the ports of kube-nftproxy, the present proxy with its mode and rules, the pod network,\n" +
			"firewalls, chains that drop forwarded packets, and the sysctls that Services need. With --service-cidrs, it also checks whether networks\n" +
			"of the node have addresses of Services. It changes nothing, and does not query the API server. If a proxy runs on the node, the command\n" +
			"queries it for the name of the Node, and a kube-nftproxy also for its ServiceCIDRs. The kernel may load " +
			"the modules of nftables.",
		Example: "  kube-nftproxy preflight --service-cidrs=10.96.0.0/12,fd00:10:96::/112\n  kube-nftproxy preflight " +
			"-o json | jq -r '.findings[].reason'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.learn(cmd.Context(), &site); err != nil {
				return err
			}
			if len(cidrs) > 0 {
				site.ServiceCIDRs = nil
			}
			for _, text := range cidrs {
				p, err := model.ParsePrefix(text)
				if err != nil {
					return fmt.Errorf("read --service-cidrs: %w", err)
				}
				site.ServiceCIDRs = append(site.ServiceCIDRs, p)
			}
			site.NodeName = strings.ToLower(cmp.Or(name, site.NodeName))
			host, _ := os.Hostname() // after an error, the findings name no node
			site.Hostname = strings.ToLower(host)
			v := doctor.Preflight(cmd.Context(), site)
			err := q.answer(cmd.OutOrStdout(), v, v.Text, !v.Ready)
			if hold && (err == nil || errors.Is(err, errWrong)) {
				ended, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
				defer stop()
				<-ended.Done()
			}
			return err
		},
	}
	q.flags(cmd)
	cmd.Flags().StringVar(&site.Root, "root", "/", "Root folder of the node, if the command runs in a container.")
	cmd.Flags().StringVar(&name, "hostname-override", "", "Name of the Node. Default: its name in the configuration "+
		"of the proxy that runs, or else the host name.")
	cmd.Flags().BoolVar(&hold, "hold", false,
		"After the output, wait for a signal. In a pod, kubectl nftproxy preflight then repeats the checks.")
	cmd.Flags().StringSliceVar(&cidrs, "service-cidrs", nil, "Prefixes of cluster IPs: kubectl get servicecidrs "+
		"shows them. Default: those of a running kube-nftproxy.")
	return cmd
}

// learn sets the facts about the cluster that a running kube-nftproxy has. Without such a program, it sets none, and
// fails only if the command line selects one.
func (q *question) learn(ctx context.Context, site *doctor.Site) error {
	r := &running{ctx, q.client()}
	var s config.Running
	if err := r.client.Get(ctx, control.PageSettings, &s); err != nil {
		if q.socket+q.proxyName == "" {
			return nil
		}
		return err
	}
	var c struct{ Mode string }
	if err := yaml.Unmarshal([]byte(s.Config), &c); err != nil {
		return fmt.Errorf("read the configuration of the running program: %w", err)
	}
	source := manifests.New(watch.Config{
		NodeName: s.Node, ServiceProxyName: q.proxyName,
		Tracker: track.New(time.Now(), time.Now), Report: func(model.Problem) {},
	})
	// A program that has read no objects yet, for example because the API server does not answer, has no ServiceCIDRs.
	if err := r.complete(source, false); err == nil {
		found, _ := model.ServiceCIDRs(source.ServiceCIDRs()) // the program reports problems
		site.ServiceCIDRs = slices.Concat(found[:]...)
	}
	site.NodeName, site.Mode = s.Node, c.Mode
	return nil
}

// lacks returns the features that the tables of IP families need and the kernel lacks.
func lacks(families []inet.Family) ([]probe.Missing, error) {
	kernel, err := apply.Open()
	if err != nil {
		return nil, err
	}
	missing, err := kernel.Lacks(plan.Options{Families: families, DirectReturn: true})
	return missing, errors.Join(err, kernel.Close())
}
