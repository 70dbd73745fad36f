package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
)

// kubeProxy and kubeNftproxy are the programs under test.
const (
	kubeProxy    = "kube-proxy"
	kubeNftproxy = "kube-nftproxy"
)

// settings are the flags.
type settings struct {
	root, programs, kubernetes, ours, proxy, focus, results, output string
	nodes, procs                                                    int
	keep                                                            bool
}

func main() {
	log.SetFlags(log.Ltime)
	if len(os.Args) == 2 && os.Args[1] == nodeCommand {
		fmt.Fprintln(os.Stderr, "conformance:", becomeNode())
		os.Exit(1)
	}
	var s settings
	flag.StringVar(&s.root, "root", "", "root file system of nodes and images")
	flag.StringVar(&s.programs, "programs", "bin/kubernetes", "folder of the programs of Kubernetes")
	flag.StringVar(&s.kubernetes, "kubernetes", "", "release of Kubernetes, a folder in that folder; empty: that folder itself")
	flag.StringVar(&s.ours, "kube-nftproxy", "bin/kube-nftproxy", "our program")
	flag.StringVar(&s.proxy, "proxy", "both", kubeProxy+", "+kubeNftproxy+", or both")
	flag.IntVar(&s.nodes, "nodes", 2, "nodes, at most 9")
	flag.StringVar(&s.focus, "focus", "", "only tests whose names match this regular expression")
	flag.IntVar(&s.procs, "procs", 8, "tests side by side")
	flag.StringVar(&s.results, "results", "bin/conformance.results", "folder for the results of each run, and after a failure for logs and bundles")
	flag.StringVar(&s.output, "output", "", "root of the checkout in which docs/conformance.json and docs/conformance.md are written; empty: print only")
	flag.BoolVar(&s.keep, "keep", false, "keep each cluster until Ctrl-C, and print how to reach it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	proxies := []string{kubeProxy, kubeNftproxy}
	if s.proxy != "both" {
		if !slices.Contains(proxies, s.proxy) {
			return fmt.Errorf("unknown proxy %q", s.proxy)
		}
		proxies = []string{s.proxy}
	}
	if s.nodes < 2 || s.nodes > 9 {
		return fmt.Errorf("%d nodes: want 2 to 9", s.nodes)
	}
	focus, err := regexp.Compile(s.focus)
	if err != nil {
		return fmt.Errorf("focus: %w", err)
	}
	for _, path := range []*string{&s.root, &s.programs, &s.ours, &s.results} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	var failed error
	for _, proxy := range proxies {
		result, err := runOne(ctx, s, proxy, focus)
		if err != nil {
			return fmt.Errorf("%s: %w", proxy, err)
		}
		fmt.Print(result.summary())
		failed = errors.Join(failed, result.failure())
		if s.output != "" {
			if err := publish(s.output, *result, s.focus != ""); err != nil {
				return err
			}
		}
	}
	return failed
}

// runOne runs all tests with one proxy on a cluster of its own.
func runOne(ctx context.Context, s settings, proxy string, focus *regexp.Regexp) (result *Run, err error) {
	began := time.Now()
	w, err := newWorld(s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	starting, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := w.start(starting, proxy); err != nil {
		return nil, errors.Join(err, w.keepLogs(ctx, filepath.Join(s.results, proxy+"-does-not-start")))
	}
	log.Printf("%s: %d nodes are ready after %.0f s", proxy, s.nodes, time.Since(began).Seconds())
	result = &Run{Kubernetes: w.version, Proxy: proxy, ProxyVersion: w.proxyVersion, Nodes: s.nodes, Kernel: kernel()}
	err = w.test(ctx, result, focus)
	result.Minutes = int(time.Since(began).Minutes() + 0.5)
	if err == nil {
		err = result.save(w.results)
	}
	if s.keep {
		log.Printf("keeping it until Ctrl-C: nsenter --net=/run/netns/%s, kubeconfig %s", w.control, w.path("admin.conf"))
		<-ctx.Done()
	}
	return result, err
}

// kernel returns the version of this machine's kernel, without the suffix of the build.
func kernel() string {
	version, _, _ := strings.Cut(host.Release(), "-")
	return version
}
