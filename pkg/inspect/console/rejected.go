package console

import (
	"fmt"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// rejected reports files and objects with parts that are not programmed. A finding about a file has severity wrong,
// because files belong to the node's administrator. A finding about an object is a warning, because tenants write
// objects and must not be able to make nodes unhealthy.
func (c *Console) rejected(o *objects, conflicts []plan.Conflict) (list view.Findings) {
	list = c.rejectedFiles()
	warn := func(reason view.Reason, a *affected, what, impact, fix string) {
		if a.count() == 0 {
			return
		}
		list.Add(view.Warning, reason, "Service "+view.Names(a.names, a.more),
			fmt.Sprintf(what, view.Count(a.count(), "Service"), a.first),
			impact,
			fix,
			"only clients of these Services")
	}
	warn(view.ObjectRejected, &o.rejected, "parts of %s are not programmed. The first problem: %s",
		"clients cannot use the rejected parts. All other parts of these Services are served", "correct the objects. To list all problems: kube-nftproxy services --wrong")
	warn(view.ObjectRejected, &o.annotated, "annotations of %s are rejected. The first problem: %s",
		"each problem has the effect of its annotation. All other parts of these Services are served", "correct the annotations. To list all problems: kube-nftproxy services --wrong")
	warn(view.HealthCheckPortTaken, &o.broken, "the health check node ports of %s are not served. The first reason: %s",
		"load balancers send no traffic of these Services to this node",
		fmt.Sprintf("on node %s: the text in brackets has the remedy. "+
			"To list all reasons and remedies: kube-nftproxy services --wrong", c.NodeName))
	var lost affected
	for i, conflict := range conflicts {
		if i == 0 || conflict.Loser.NamespacedName != conflicts[i-1].Loser.NamespacedName {
			lost.add(conflict.Loser.NamespacedName.String(), fmt.Sprintf("%s, which %s has", keyText(conflict.Key), conflict.WinnerText()))
		}
	}
	warn(view.AddressConflict, &lost, "addresses and ports of %s belong to another Service. The first: %s",
		"connections to this address and port reach the other Service", outcome.Rows[outcome.Conflict].Fix)
	if failures := c.LoopbackState().Failures; failures > 0 {
		list.Add(view.Warning, view.LoopbackPortTaken, c.node(),
			fmt.Sprintf("node ports are not served on loopback, because other processes have the ports, "+
				"or a limit of file descriptors is reached: %d", failures),
			"processes of this node cannot reach these node ports at 127.0.0.1 or ::1",
			"to list the ports, reasons and remedies: kube-nftproxy services --wrong",
			"only these processes")
	}
	return append(list, c.crowded()...)
}

// crowded reports maps of remembered clients that have too many.
func (c *Console) crowded() (list view.Findings) {
	for _, s := range c.Clients() {
		if s.Crowded {
			list.Add(view.Warning, view.AffinityFull, "Service "+s.Service.String(),
				s.What(),
				s.Impact(),
				affinity.Fix,
				"only clients of this Service")
		}
	}
	return list
}

// rejectedFiles reports documents of the manifests that the program cannot use.
func (c *Console) rejectedFiles() (list view.Findings) {
	if c.Rejected == nil {
		return nil
	}
	problems := c.Rejected()
	for _, p := range problems[:min(len(problems), view.MostNamed)] {
		list.Add(view.Wrong, view.ManifestRejected, doctor.Object(p),
			fmt.Sprintf("%s: %s", doctor.Object(p), p.Text()),
			"the objects of the document are not served, or are served as before the change",
			"correct the file. The program reads it again at once",
			"only the objects of this file")
	}
	if more := len(problems) - view.MostNamed; more > 0 {
		list[view.MostNamed-1].What += fmt.Sprintf(" (and %d more problems of files; the log has all)", more)
	}
	return list
}

// keyText returns, for example, 203.0.113.5:80/TCP or node port 30080/TCP.
func keyText(k model.Key) string {
	protocol := strings.ToUpper(k.Protocol.String())
	if !k.Addr.IsValid() {
		return fmt.Sprintf("node port %d/%s", k.Port, protocol)
	}
	return fmt.Sprintf("%s/%s", k.Address(), protocol)
}
