//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/faulty"
)

// newCertified returns a besieged program with file-based certificates, its own and the API server's authority. It also trusts
// the next authority.
func newCertified(t *testing.T) (b *besieged, files faulty.Credentials, next *faulty.Authority) {
	t.Helper()
	b = besiege(t, 1)
	files = faulty.Credentials{CA: filepath.Join(b.dir, "ca.crt"), Certificate: filepath.Join(b.dir, "client.crt"), Key: filepath.Join(b.dir, "client.key")}
	must(t, b.Kubeconfig(b.kubeconfig, files))
	var err error
	if next, err = faulty.NewAuthority(); err != nil {
		t.Fatal(err)
	}
	b.replace(files.CA, slices.Concat(b.CA(), next.CA()))
	b.authenticate(t, files)
	b.begin(t)
	return b, files, next
}

// replace replaces the content of a file atomically, as the kubelet does.
func (b *besieged) replace(path string, data []byte) {
	b.Helper()
	must(b, errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)))
}

// authenticate makes the API server require a new client certificate, which the client finds in its files.
func (b *besieged) authenticate(t *testing.T, files faulty.Credentials) {
	t.Helper()
	cert, key, err := b.RequireCertificate()
	must(t, err)
	b.replace(files.Certificate, cert)
	b.replace(files.Key, key)
}

// TestCredentialsAndPermissions replaces certificates of the API server and of the program in sequence while it runs, and removes
// and restores permissions. Rules stay in effect, and changes follow. Restarts in between reset its pauses. API_FAULT enables
// slow cases.
func TestCredentialsAndPermissions(t *testing.T) {
	b, files, next := newCertified(t)
	must := func(err error) {
		t.Helper()
		must(t, err)
	}
	p := b.newPermissions(t)
	for _, c := range []struct {
		name string
		do   func(*testing.T)
		long bool
	}{
		{"certificates of the API server and the client", func(t *testing.T) {
			must(b.Certify(nil))
			b.authenticate(t, files)
			b.afterCertificates(t, 20*time.Second)
		}, false},
		{"Services not permitted at a start", func(t *testing.T) { p.lack(t, true, "services") }, false},
		{"another authority, known before", func(t *testing.T) {
			must(b.Certify(next))
			b.afterCertificates(t, 20*time.Second)
		}, false},
		{"nothing permitted at a start", func(t *testing.T) { p.lack(t, true, "services", "endpointslices", "nodes", "servicecidrs") }, false},
		{"EndpointSlices not permitted any more", func(t *testing.T) { p.lack(t, false, "endpointslices") }, false},
		{"nothing permitted any more", func(t *testing.T) { p.lack(t, false, "services", "endpointslices", "nodes", "servicecidrs") }, true},
		// client-go reads the file every five minutes.
		{"another authority, not known before", func(t *testing.T) {
			other, err := faulty.NewAuthority()
			must(err)
			must(b.Certify(other))
			b.replace(files.CA, other.CA())
			b.afterCertificates(t, 6*time.Minute)
		}, true},
	} {
		if !c.long || os.Getenv("API_FAULT") != "" {
			t.Run(c.name, c.do)
		}
	}
	b.rightAnswers(t)
	b.asFresh(t)
}

// afterCertificates checks that the program reaches the API server after a replacement of certificates.
func (b *besieged) afterCertificates(t *testing.T, within time.Duration) {
	t.Helper()
	if b.Cut() == 0 {
		t.Error("there was no connection")
	}
	b.change()
	t.Logf("what changed was served after %v", b.awaitChange(t, within).Round(time.Millisecond))
	if err := b.healthy(); err != nil {
		t.Error(err)
	}
}

// permissions are those of the program's role. Without one, the API server's RBAC rejects requests.
type permissions struct {
	*besieged
	role  *rbacv1.ClusterRole
	whole []rbacv1.PolicyRule
}

func (b *besieged) newPermissions(t *testing.T) *permissions {
	t.Helper()
	role, err := b.api.Client().RbacV1().ClusterRoles().Get(t.Context(), "system:node-proxier", metav1.GetOptions{})
	must(t, err)
	return &permissions{b, role, role.DeepCopy().Rules}
}

// set sets the role's rules.
func (p *permissions) set(t *testing.T, rules []rbacv1.PolicyRule) {
	t.Helper()
	p.role.Rules = rules
	var err error
	if p.role, err = p.api.Client().RbacV1().ClusterRoles().Update(t.Context(), p.role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// lack removes the permission to read resources, waits until the program notices, or restarts it, and restores the permission.
func (p *permissions) lack(t *testing.T, restart bool, resources ...string) {
	t.Helper()
	before, err := p.d.scrape()
	must(t, err)
	logged := len(p.d.lines("forbidden"))
	p.set(t, without(p.whole, resources))
	if restart {
		p.d.Kill()
		p.d = p.startOn(p.Node, p.kubeconfig)
		logged, before = 0, nil
	} else {
		p.Cut()
	}
	p.change()
	for _, resource := range resources {
		name := fmt.Sprintf("kubenftproxy_watch_errors_total{resource=%q}", resource)
		eventually(t, patience, func() error {
			after, err := p.d.scrape()
			if err == nil && after[name] == before[name] {
				err = fmt.Errorf("%s is %v", name, after[name])
			}
			return err
		})
	}
	if said := p.d.lines("forbidden"); len(said) == logged {
		t.Error("no word of it in the log")
	}
	if err := p.unchanged(); err != nil {
		t.Error(err)
	}
	p.set(t, p.whole)
	t.Logf("what changed was served %v after permissions were given back", p.awaitChange(t, 30*time.Second).Round(time.Millisecond))
	eventually(t, patience, p.healthy)
}

// without returns the rules without those for some resources.
func without(rules []rbacv1.PolicyRule, resources []string) (left []rbacv1.PolicyRule) {
	for _, r := range rules {
		r.Resources = slices.DeleteFunc(slices.Clone(r.Resources), func(s string) bool { return slices.Contains(resources, s) })
		if len(r.Resources) > 0 {
			left = append(left, r)
		}
	}
	return left
}
