package hostile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestTheKeyIsNotShown reads the keys of the digests from the kernel, which only root can do. It searches the program's log, pages and command
// output for them: after a start that adopts the tables, after a start that finds other elements, and after a repair of the element with the
// key.
func TestTheKeyIsNotShown(t *testing.T) {
	n := newNode(t, 1)
	n.synced("bank", append(bankSlices(n.Pods[0]), bankService())...)
	n.Kill()
	n.flags = append(n.flags, "--control-socket", filepath.Join(t.TempDir(), "socket"), "-v", "10")
	keys := map[string]bool{}
	look := func(when, reason string) {
		n.until(10*patience, reason, func() error { // the program caches the page for a while
			if text := n.get("/status/data"); !strings.Contains(text, reason) {
				return errors.New(text)
			}
			return nil
		})
		for _, family := range []string{"ip", "ip6"} {
			key := regexp.MustCompile(` key ([0-9a-f]{16})([0-9a-f]{16}) `).FindStringSubmatch(n.nft("list", "set", family, "kube-nftproxy", "state"))
			if key == nil {
				t.Fatalf("%s: no key in the state of %s", when, family)
			}
			for _, half := range key[1:] {
				number, err := strconv.ParseUint(half, 16, 64)
				lab.Must(t, err)
				keys[half], keys[strconv.FormatUint(number, 10)] = true, true
			}
		}
		outputs := n.outputs()
		for name, text := range outputs {
			for key := range keys {
				if i := strings.Index(text, key); i >= 0 {
					t.Errorf("%s, %s shows the key: ...%.200s", when, name, text[max(0, i-80):])
				}
			}
		}
		if !strings.Contains(outputs["the log"], reason) {
			t.Errorf("%s, the log lacks %q:\n%.3000s", when, reason, outputs["the log"])
		}
	}
	n.start()
	look("after a start", "adopted")
	n.Kill()
	n.put("bank", append(bankSlices(n.Pods[1]), bankService())...)
	n.start()
	look("after a start with other elements", "not as wanted: elements")
	n.nft("add element ip kube-nftproxy state { 2 }; delete element ip kube-nftproxy state { 1 }")
	look("after a repair", "this version cannot read its element state")
}

// get returns the content of a page of the program.
func (n *node) get(page string) string {
	n.Helper()
	_, body, err := n.Get(n.Context(), "http://127.0.0.1:10249"+page)
	lab.Must(n.T, err)
	return string(body)
}

// outputs returns all output of the program by its source. If a page fails or a command prints nothing, the test fails.
func (n *node) outputs() map[string]string {
	n.Helper()
	log, err := os.ReadFile(n.log)
	lab.Must(n.T, err)
	all := map[string]string{"the log": string(log)}
	for _, page := range []string{"/status/data", "/status/syncs", "/status/services", "/metrics", "/configz", "/flagz", "/statusz"} {
		all[page] = n.get(page)
	}
	path, err := built()
	lab.Must(n.T, err)
	socket := []string{"--control-socket", n.flags[len(n.flags)-3]}
	for _, command := range [][]string{
		append([]string{"status"}, socket...), append([]string{"services", "-o", "json"}, socket...),
		append([]string{"verify", "-o", "json"}, socket...), append([]string{"bundle", "-f", "-"}, socket...),
		{"trace", "192.0.2.100", "10.96.0.10:8443", "-o", "json"}, {"render", "-f", n.folder}, {"diff", "-f", n.folder, "--cluster-cidr", "10.0.0.0/8"},
	} {
		var out, errOut bytes.Buffer
		cmd := n.Node.Command(n.Context(), path, command...)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run() // some commands exit with code 1 after a finding
		if out.Len() == 0 {
			n.Errorf("%s: %v, no output\n%s", command, err, errOut.String())
		}
		if command[0] == "bundle" {
			n.unpack(all, &out)
		}
		all[command[0]] = out.String() + errOut.String()
	}
	return all
}

// unpack adds the files of an archive to all.
func (n *node) unpack(all map[string]string, archive io.Reader) {
	n.Helper()
	z, err := gzip.NewReader(archive)
	lab.Must(n.T, err)
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		lab.Must(n.T, err)
		content, err := io.ReadAll(r)
		lab.Must(n.T, err)
		all["bundle's "+h.Name] = string(content)
	}
}
