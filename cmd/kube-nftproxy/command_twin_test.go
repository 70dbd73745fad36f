//go:build twin

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// ended is the result of a program.
type ended struct {
	Status int
	// Stdout is true for output to standard output.
	Stdout bool
	// Said is the last line of standard error without variable parts: the error.
	Said string
}

var (
	header  = regexp.MustCompile(`^[IEW]\d{4} \S+ +\d+ \S+\] `)
	ourself = strings.NewReplacer("kube-nftproxy", "kube-proxy", "connect to the API server: ", "")
	// ownWords matches differing words in parentheses at the end of some errors.
	ownWords = regexp.MustCompile(`or blank \(blank means.*?\)|dual-stack pair of CIDRs.*`)
)

// runsTo runs a program until it exits, in a namespace without a network.
func runsTo(t *testing.T, path string, args []string) ended {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	last := ownWords.ReplaceAllString(ourself.Replace(header.ReplaceAllString(lines[len(lines)-1], "")), "")
	if cmd.ProcessState.ExitCode() == 0 {
		last = ""
	}
	return ended{cmd.ProcessState.ExitCode(), stdout.Len() > 0, last}
}

// TestCommandLinesEndAsThoseOfKubeProxy compares exit codes and errors for command lines that do not lead to serving.
// After an error, kube-proxy also prints all flags. Unknown feature gates differ, see docs/differences.md.
func TestCommandLinesEndAsThoseOfKubeProxy(t *testing.T) {
	lab.EnterNamespace(t)
	theirs, err := filepath.Abs("../../bin/kubernetes/kube-proxy")
	lab.Must(t, err)
	ours := program.BuildForTest(t)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "config")
		lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, args := range [][]string{
		{"--version"}, {"--version=true"}, {"--version=raw"}, {"--version=abc"}, {"--version", "--nosuch"}, {"-h"}, {"--help"},
		{"extra", "arg"}, {"--nosuch"}, {"--conntrack-min=x"}, {"--cleanup=maybe"}, {"--bind-address=here"}, {"--healthz-port=abc"},
		{"--config-sync-period=5"}, {"--kube-api-qps=x"}, {"--proxy-mode"}, {"-v", "x"}, {"--vmodule=x"}, {"--healthz-bind-address=x"},
		{"--nodeport-addresses"}, {"--feature-gates=x"}, {"--log-flush-frequency=x"}, {"--metrics-bind-address=1.2.3.4:99999"},
		{"--proxy-mode=userspace"}, {"--feature-gates=MultiCIDRServiceAllocator=false"},
		{"--logging-format=xml"}, {"--log-text-split-stream"}, {"--hostname-override", " "}, {"--oom-score-adj=2000"},
		{"--config=/nonexistent"}, {"--config=/"}, {"--config", file("")}, {"--config", file("x")}, {"--config", file(head + "mode: [x]")},
		{"--config", file("kind: Pod\napiVersion: v1\n")}, {"--config", file(strings.Replace(head, "alpha1", "", 1))}, {"--config", file(head + "mode: other\n")},
		{"--config", file(head + "logging: {format: xml}\n")},
		{"--config", file(head + "conntrack: {min: -1}\noomScoreAdj: 2000\n")},
		{"--write-config-to=/nonexistent/x"}, {"--kubeconfig=/nonexistent", "--hostname-override=n"}, {"--hostname-override=n"},
		{"--write-config-to", file(""), "--cleanup", "--init-only"}, {"--write-config-to", file(""), ""},
	} {
		their, our := runsTo(t, theirs, args), runsTo(t, ours, args)
		lab.Same(t, their, our, "%q (-kube-proxy +ours)", args)
	}
}
