package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The firewall of another program, and how to list and delete it. The chain of a network policy would look the same.
const (
	firewall = "table inet site-firewall { chain forward { type filter hook forward priority 0; " +
		"ip saddr 10.244.0.12 tcp dport 8080 drop; }; }"
	noFirewall = "delete table inet site-firewall"
	guilty     = "Stopped by rule 2 of chain forward of table inet site-firewall"
)

// socket is the control socket of the daemon, which the commands query.
func (d *demo) socket() string { return d.scratch + "/control.sock" }

// query runs a command of the program on the node, and shows its output. Such a command exits with 1 after a finding.
func (d *demo) query(ctx context.Context, args ...string) (string, error) {
	d.out.command("kube-nftproxy " + strings.Join(args, " "))
	out, err := d.lab.Node.Command(ctx, d.program, append(args, "--control-socket", d.socket())...).CombinedOutput()
	d.out.output(string(out))
	if len(out) == 0 && err != nil {
		return "", fmt.Errorf("run kube-nftproxy %s: %w", args[0], err)
	}
	return string(out), nil
}

// nft runs a command of nft on the node.
func (d *demo) nft(ctx context.Context, command string) error {
	out, err := d.lab.Node.Command(ctx, "nft", command).CombinedOutput()
	if err != nil {
		return fmt.Errorf("run nft %s: %w: %s", command, err, out)
	}
	return nil
}

// reason asks the program why the Service has no endpoint.
func (d *demo) reason(ctx context.Context) error {
	d.out.note("The program tells the reason:")
	out, err := d.query(ctx, "services", "empty")
	if err != nil {
		return err
	}
	const why = "its selector matches no pod"
	return d.expect(strings.Contains(out, why), "It names the reason for each port.", why, "the output above")
}

// firewall adds a rule of another program that drops packets to web, and asks the program about it.
func (d *demo) firewall(ctx context.Context) error {
	d.out.command("nft '" + strings.Replace(firewall, "ip saddr", "\\\n        ip saddr", 1) + "'")
	if err := d.nft(ctx, firewall); err != nil {
		return err
	}
	a := d.asker.Probe(ctx, inet.TCP, web4, lab.Options{})
	d.requests++
	err := d.expect(a.Outcome == lab.TimedOut, fmt.Sprintf("%s ── TCP ──▶ web %s: no answer within %s.", d.asker.Name, web4,
		millis(lab.DefaultTimeout)), "no answer", a.String())
	if err != nil {
		return err
	}
	d.out.note("The program follows the packets of the pod, which tries again:")
	out, err := d.traced(ctx)
	if err != nil {
		return err
	}
	err = d.expect(strings.Contains(out, guilty), "It names the rule, and the command that lists it.", guilty, "the output above")
	if err != nil {
		return err
	}
	d.out.command("nft " + noFirewall)
	if err := d.nft(ctx, noFirewall); err != nil {
		return err
	}
	a = d.asker.Probe(ctx, inet.TCP, web4, lab.Options{})
	d.requests++
	return d.expect(a.Outcome == lab.Answered, "Without the rule, web answers again.", "an answer", a.String())
}

// traced follows the next connection of the asker through the rules of the node, of all programs.
func (d *demo) traced(ctx context.Context) (string, error) {
	trying, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	defer func() { stop(); <-done }()
	go func() {
		defer close(done)
		for trying.Err() == nil {
			d.asker.Probe(trying, inet.TCP, web4, lab.Options{Timeout: 50 * time.Millisecond})
		}
	}()
	return d.query(ctx, "trace", d.asker.IPv4.String(), "svc/default/web:http", "--live")
}
