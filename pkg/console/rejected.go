package console

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// rejected reports files and objects that are not programmed as their authors wrote them. Files belong to this node's administrator, and such
// a finding is wrong. Tenants write objects, and must not be able to make nodes unhealthy: these findings are warnings.
func (c *Console) rejected(o *objects, conflicts []plan.Conflict) (list []view.Finding) {
	list = c.rejectedFiles()
	warn := func(reason view.Reason, a *affected, what, impact, fix string) {
		if a.count() == 0 {
			return
		}
		object := "Service " + strings.Join(a.names, ", ")
		if a.more > 0 {
			object += fmt.Sprintf(" and %d more", a.more)
		}
		list = append(list, view.Finding{
			Severity: view.Warning, Reason: reason, Object: object, What: fmt.Sprintf(what, view.Count(a.count(), "Service"), a.first), Impact: impact, Fix: fix, Affects: "only clients of these Services",
		})
	}
	warn(view.ObjectRejected, &o.rejected, "parts of %s are not programmed. The first problem: %s",
		"clients do not reach these Services by the rejected parts. All other parts are served", "correct the objects. To list all problems: kube-nftproxy services --wrong")
	warn(view.HealthCheckPortTaken, &o.broken, "the health check node ports of %s are not served. The first reason: %s",
		"load balancers send no traffic of these Services to this node", fmt.Sprintf("on node %s: stop the process that has the port, or move it to another port. "+
			"To list the ports: kube-nftproxy services --wrong", c.NodeName))
	var lost affected
	for i, conflict := range conflicts {
		if i == 0 || conflict.Loser.NamespacedName != conflicts[i-1].Loser.NamespacedName {
			lost.add(conflict.Loser.NamespacedName.String(), fmt.Sprintf("%s, which %s has", keyText(conflict.Key), conflict.Winner))
		}
	}
	warn(view.AddressConflict, &lost, "addresses and ports of %s belong to another Service. The first: %s",
		"connections to this address and port reach the other Service", view.FixConflict)
	if failures := c.LoopbackState().Failures; failures > 0 {
		list = append(list, view.Finding{
			Severity: view.Warning, Reason: view.LoopbackPortTaken, Object: c.node(), What: fmt.Sprintf("node ports that are not served on loopback, because other processes have the ports: %d", failures),
			Impact: "processes of this node do not reach these Services by 127.0.0.1 or ::1", Fix: "stop the processes. To list the ports: kube-nftproxy services --wrong",
			Affects: "only these processes",
		})
	}
	return list
}

// rejectedFiles reports documents of the manifests that the program cannot use.
func (c *Console) rejectedFiles() (list []view.Finding) {
	if c.Rejected == nil {
		return nil
	}
	problems := c.Rejected()
	for _, p := range problems[:min(len(problems), mostNamed)] {
		list = append(list, view.Finding{
			Severity: view.Wrong, Reason: view.ManifestRejected, Object: doctor.Object(p), What: fmt.Sprintf("%s: %s", doctor.Object(p), p.Text()),
			Impact: "the objects of the document are not served, or are served as before the change", Fix: "correct the file. The program reads it again at once",
			Affects: "only the objects of this file",
		})
	}
	if more := len(problems) - mostNamed; more > 0 {
		list[mostNamed-1].What += fmt.Sprintf(" (and %d more problems of files; the log has all)", more)
	}
	return list
}

// keyText returns, for example, 203.0.113.5:80/TCP or node port 30080/TCP.
func keyText(k model.Key) string {
	protocol := strings.ToUpper(k.Protocol.String())
	if !k.Addr.IsValid() {
		return fmt.Sprintf("node port %d/%s", k.Port, protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Addr, k.Port), protocol)
}
