package plugin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // as in kubectl
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/usage"
)

// The exit codes are the same as those of the commands.
const (
	exitFine   = 0
	exitWrong  = 1
	exitUnable = 2
)

// defaultSelector selects the pods of kube-nftproxy.
const defaultSelector = "k8s-app in (kube-nftproxy, kube-proxy)"

// commands are the words that are a command, not the name of a node, if they are the first argument.
var commands = []string{"status", "services", "trace", "verify", "watch", "bundle", "render", "diff", "preflight", "version", "help", "completion"}

// options are the flags of the plugin.
type options struct {
	cluster
	in         io.Reader
	out, err   io.Writer
	all        bool
	of         string
	parallel   int
	code       int
	kubeconfig *clientcmd.ClientConfigLoadingRules
	overrides  clientcmd.ConfigOverrides
}

// Run runs the plugin with the arguments of a command line, and returns the exit code.
func Run(version string, args []string, in io.Reader, out, errs io.Writer) int {
	o := &options{in: in, out: out, err: errs}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cmd := o.newCommand(version)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(o.err, "kubectl nftproxy: %v\n", err)
		return exitUnable
	}
	return o.code
}

// New returns the command of the plugin, for its manual page.
func New(version string) *cobra.Command { return new(options).newCommand(version) }

// newCommand returns the command, whose flags set the options.
func (o *options) newCommand(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nftproxy [NODE | --all | --of NAMESPACE/POD] COMMAND [ARGUMENT]...",
		Short: "Run a command of kube-nftproxy on nodes of the cluster",
		Long: `The plugin runs a command of kube-nftproxy in the pod of a node: status, services, trace, verify, watch, bundle and others. The plugin reads
the flags before the node or the command, which include flags of kubectl such as --context. The command reads all later flags.

status without a node, or with --all, prints one table of all nodes, with problems first. The table includes Nodes without a pod of
kube-nftproxy. preflight without a node prints such a table from the pods of deploy/preflight, before an installation.
Other commands with --all print the name of the node before each line. bundle writes a file for each node into the
current folder. trace pod/NAMESPACE/NAME needs no node: it runs on the node of the pod.

The exit code is the highest exit code of the command on all selected nodes: 0 no problem, 1 a problem, 2 the command failed.`,
		Example: `  kubectl nftproxy status
  kubectl nftproxy preflight
  kubectl nftproxy node-1 services svc/shop/web
  kubectl nftproxy --of shop/cart-7d9f status
  kubectl nftproxy trace pod/shop/cart-7d9f svc/shop/web:http
  kubectl nftproxy --all verify
  kubectl nftproxy node-1 bundle`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nftproxy"},
		Version:     version, SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 1 || len(args) == 1 && slices.Contains(commands, args[0]) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return commands, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), cmd, args) },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetOut(o.out)
	cmd.SetErr(o.err)
	f := cmd.Flags()
	cmd.SetFlagErrorFunc(usage.FlagError)
	usage.FitHelp(cmd)
	f.Bool("version", false, "Print the version of the plugin and exit.")
	f.SetInterspersed(false) // flags after the command belong to the command
	o.kubeconfig = clientcmd.NewDefaultClientConfigLoadingRules()
	f.StringVar(&o.kubeconfig.ExplicitPath, "kubeconfig", "", "Path of the kubeconfig file.")
	clientcmd.BindOverrideFlags(&o.overrides, f, clientcmd.RecommendedConfigOverrideFlags(""))
	f.Lookup("namespace").Usage = "Namespace of the pods of kube-nftproxy. Default: kube-system."
	f.StringVarP(&o.selector, "selector", "l", defaultSelector, "Label selector of the pods of kube-nftproxy.")
	f.StringVarP(&o.container, "container", "c", "", "Container in these pods. Default: the first.")
	f.BoolVar(&o.all, "all", false, "Run the command on all nodes.")
	f.StringVar(&o.of, "of", "", "Run the command on the node of this pod, as NAMESPACE/POD.")
	f.IntVarP(&o.parallel, "parallel", "P", 50, "Number of nodes on which the command runs at the same time.")
	return cmd
}

// dial reads the kubeconfig, and makes a client of the API server.
func (o *options) dial() (err error) {
	if o.config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.kubeconfig, &o.overrides).ClientConfig(); err != nil {
		return err
	}
	o.client, err = kubernetes.NewForConfig(o.config)
	return err
}

// run selects the nodes, and runs the command.
func (o *options) run(ctx context.Context, cmd *cobra.Command, args []string) error {
	node := ""
	if !o.all && o.of == "" && len(args) > 0 && !slices.Contains(commands, args[0]) {
		node, args = args[0], args[1:]
	}
	switch {
	case node == "" && !o.all && o.of == "" && (len(args) == 0 || args[0] == "help"):
		return cmd.Help()
	case len(args) == 0 && node != "":
		return fmt.Errorf("no command for node %s%s", node, cmp.Or(usage.DidYouMean(node, commands), "; see kubectl nftproxy --help"))
	case len(args) == 0:
		return errors.New("no command; see kubectl nftproxy --help")
	case strings.HasPrefix(args[0], "-"): // without a command, the pod would start a second daemon
		return fmt.Errorf("%s is not a command%s", args[0], cmp.Or(usage.DidYouMean(node, commands), ": the flags of the plugin are before the node"))
	case o.parallel < 1:
		return errors.New("--parallel must be at least 1")
	}
	if o.namespace = o.overrides.Context.Namespace; o.namespace == "" {
		o.namespace = metav1.NamespaceSystem
	}
	if err := o.dial(); err != nil {
		return err
	}
	var err error
	if args[0] == "trace" && len(args) > 1 && strings.HasPrefix(args[1], "pod/") {
		if args, err = o.withAddress(ctx, args, &node); err != nil {
			return err
		}
	}
	if o.of != "" {
		namespace, name, found := strings.Cut(o.of, "/")
		if !found {
			return errors.New("--of takes NAMESPACE/POD")
		}
		pod, err := o.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = pod.Spec.NodeName; node == "" {
			return fmt.Errorf("pod %s has no node yet", o.of)
		}
	}
	switch {
	case node == "" && len(args) == 1 && questions[args[0]].read != nil:
		return o.summary(ctx, questions[args[0]])
	case node == "" && o.all:
		return o.everywhere(ctx, args)
	case node == "":
		return fmt.Errorf("%s needs a node: kubectl nftproxy NODE %[1]s, or --all", args[0])
	}
	p, err := o.podOf(ctx, node)
	if err != nil {
		return fmt.Errorf("%w%s", err, usage.DidYouMean(node, commands))
	}
	o.code, err = o.one(ctx, p, args, remotecommand.StreamOptions{Stdin: o.input(args), Stdout: o.out, Stderr: o.err})
	return err
}

// withAddress replaces the name of the pod from which a trace starts with the address of the pod. It sets the node if
// it is empty.
func (o *options) withAddress(ctx context.Context, args []string, node *string) ([]string, error) {
	parts := strings.Split(args[1], "/")
	if len(parts) != 3 {
		return nil, fmt.Errorf("%q is not the name of a pod: use pod/NAMESPACE/NAME", args[1])
	}
	pod, err := o.client.CoreV1().Pods(parts[1]).Get(ctx, parts[2], metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if len(pod.Status.PodIPs) == 0 {
		return nil, fmt.Errorf("%s has no address yet", args[1])
	}
	if *node == "" && !o.all && o.of == "" {
		*node = pod.Spec.NodeName
	}
	args = slices.Clone(args)
	args[1] = pod.Status.PodIPs[0].IP
	if len(args) > 2 {
		where, _, _ := strings.Cut(args[2], "/")
		to, err := netip.ParseAddrPort(where)
		for _, ip := range pod.Status.PodIPs {
			if addr, notAddr := netip.ParseAddr(ip.IP); err == nil && notAddr == nil && addr.Is4() == to.Addr().Is4() {
				args[1] = ip.IP
			}
		}
	}
	if pod.Spec.HostNetwork {
		args[1] = "node"
	}
	return args, nil
}

// input returns the standard input if the arguments of a command name it, and nil if they do not.
func (o *options) input(args []string) io.Reader {
	if args[0] != "bundle" && slices.Contains(args, "-") {
		return o.in
	}
	return nil
}

// one runs a command in the pod of a node.
func (o *options) one(ctx context.Context, p proxyPod, args []string, s remotecommand.StreamOptions) (int, error) {
	if args[0] == "bundle" && len(args) == 1 {
		return o.bundle(ctx, p, s.Stdout, s.Stderr)
	}
	if f, ok := s.Stdout.(*os.File); ok && s.Stdin == nil {
		s.Tty = term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor
	}
	return o.cluster.run(ctx, p, args, s)
}

// bundle writes the archive of a node to a file, and prints its name.
func (o *options) bundle(ctx context.Context, p proxyPod, out, errs io.Writer) (code int, err error) {
	name := fmt.Sprintf("kube-nftproxy-%s-%s.tar.gz", p.node, time.Now().UTC().Format("20060102-150405"))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return exitUnable, err
	}
	code, err = o.cluster.run(ctx, p, []string{"bundle", "-o", "-"}, remotecommand.StreamOptions{Stdout: file, Stderr: errs})
	if closed := file.Close(); err == nil {
		err = closed
	}
	if code != exitFine || err != nil {
		_ = os.Remove(name)
		return max(code, exitWrong), err
	}
	_, err = fmt.Fprintln(out, name)
	return code, err
}

// each runs f for each pod, for at most o.parallel pods at the same time.
func (o *options) each(list []proxyPod, f func(i int, p proxyPod)) {
	limit := make(chan struct{}, o.parallel)
	var group sync.WaitGroup
	for i, p := range list {
		limit <- struct{}{}
		group.Go(func() {
			f(i, p)
			<-limit
		})
	}
	group.Wait()
}

// everywhere runs a command on all nodes. It prints the lines of a node together, and the node's name before each line.
func (o *options) everywhere(ctx context.Context, args []string) error {
	list, err := o.pods(ctx, "")
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no pods of kube-nftproxy (namespace %s, selector %q)", o.namespace, o.selector)
	}
	if err != nil {
		return err
	}
	var input []byte
	from := o.input(args)
	if from != nil { // each node reads all of it
		if input, err = io.ReadAll(from); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	o.each(list, func(_ int, p proxyPod) {
		var out bytes.Buffer
		s := remotecommand.StreamOptions{Stdout: &out, Stderr: &out}
		if from != nil {
			s.Stdin = bytes.NewReader(input)
		}
		code, err := o.one(ctx, p, args, s)
		if err != nil {
			fmt.Fprintf(&out, "%v\n", err)
		}
		mu.Lock()
		defer mu.Unlock()
		o.code = max(o.code, code)
		for line := range strings.Lines(out.String()) {
			fmt.Fprintf(o.out, "%s: %s\n", p.node, strings.TrimRight(line, "\r\n"))
		}
	})
	return nil
}
