package hostile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestTurnsOfNamespaces: aevil creates, changes and deletes 66 Services of 4,000 frontends. Meanwhile, each change of
// bank must be served. It waits for at most a turn of aevil, whose name precedes bank's. A large part of the usual time
// is the program's wait for further changes of the folder.
func TestTurnsOfNamespaces(t *testing.T) {
	const services, each = 66, 40
	n := newBank(t)
	versions := make([][]string, 3)
	for v := range versions {
		for i := range services {
			s := service(fmt.Sprintf("aevil/wide-%d", i), fmt.Sprintf("10.96.7.%d", i+1))
			s.Spec.Ports, s.Spec.ExternalIPs = ports(1+v*each, each), texts(addresses(fmt.Sprintf("198.18.%d.1", i), 100, 1))
			var b bytes.Buffer
			lab.Must(t, json.NewEncoder(&b).Encode(s))
			versions[v] = append(versions[v], b.String())
		}
	}
	path := func(i int) string { return n.file(fmt.Sprintf("aevil-%d", i)) }
	write := func(v, i int) error {
		hidden := filepath.Join(n.folder, ".aevil")
		return errors.Join(os.WriteFile(hidden, []byte(versions[v][i]), 0o600), os.Rename(hidden, path(i)))
	}
	each10th := func(v int) func() error {
		return func() (err error) {
			for i := range services {
				err = errors.Join(err, write(v, i))
				time.Sleep(time.Second / 10)
			}
			return err
		}
	}
	for _, attack := range []struct {
		name string
		do   func() error
	}{
		{"without an attack", func() error { time.Sleep(2 * time.Second); return nil }},
		{"creates ten Services a second", each10th(0)},
		{"changes ten Services a second", each10th(1)},
		{"changes all Services at once", func() (err error) {
			for i := range services {
				err = errors.Join(err, write(2, i))
			}
			time.Sleep(3 * time.Second)
			return err
		}},
		{"deletes all Services", func() (err error) {
			for i := range services {
				err = errors.Join(err, os.Remove(path(i)))
			}
			time.Sleep(2 * time.Second)
			return err
		}},
	} {
		done := make(chan error, 1)
		go func() { done <- attack.do() }()
		var took []time.Duration
		for running := true; running; {
			took = append(took, n.bank())
			select {
			case err := <-done:
				lab.Must(t, err)
				running = false
			default:
			}
		}
		slices.Sort(took)
		if longest := took[len(took)-1]; longest > patience/2 {
			t.Errorf("aevil %s: a change of bank takes %v", attack.name, longest)
		}
		t.Logf("aevil %s: %d changes of bank, median %v, longest %v", attack.name, len(took),
			took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	}
}
