package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// prompt leaves the node to the reader: a shell in its namespace, with the commands of the program, and a command
// for each other host, which runs a program there.
func (d *demo) prompt(ctx context.Context) error {
	shell, err := exec.LookPath("bash")
	if err != nil {
		return fmt.Errorf("find a shell: %w", err)
	}
	dir := filepath.Join(d.scratch, "bin")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make commands: %w", err)
	}
	program, err := filepath.Abs(d.program)
	if err != nil {
		return fmt.Errorf("make commands: %w", err)
	}
	commands := map[string]string{"kube-nftproxy": fmt.Sprintf("%q \"$@\" --control-socket %q", program, d.socket())}
	for _, h := range d.lab.Hosts() {
		if h != d.lab.Node {
			commands[h.Name] = fmt.Sprintf("nsenter --net=%q -- \"$@\"", h.Path)
		}
	}
	for name, command := range commands {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexec "+command+"\n"), 0o700); err != nil {
			return fmt.Errorf("make commands: %w", err)
		}
	}
	d.out.title("The node is yours")
	for _, line := range []string{
		"kube-nftproxy status                          the health of the node",
		"kube-nftproxy services                        all Services; with a name: its endpoints",
		"kube-nftproxy trace 10.244.0.12 10.96.0.10:80 the path of a packet, before it is sent",
		"kube-nftproxy watch                           each change, as it is committed",
		"nft list ruleset                              all rules of the node",
		"pod-2 bash -c 'cat </dev/tcp/10.96.0.10/80'   a request of a pod; each host has such a command",
	} {
		d.out.line("    " + line)
	}
	d.out.line("")
	if !d.api {
		d.out.note("The objects are in the folder $FOLDER. After a change of a file, look again.")
	}
	d.out.note("Ctrl-D ends the demo.")
	d.out.line("")
	c := d.lab.Node.Command(ctx, shell, "--norc")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH")+":/usr/sbin:/sbin", `PS1=node-1:\w# `,
		"FOLDER="+filepath.Join(d.scratch, "folder"))
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) { // the status of the last command does not matter
		return fmt.Errorf("run a shell: %w", err)
	}
	return nil
}
