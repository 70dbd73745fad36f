package command

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// resolve replaces the names of a pod and of a Service with addresses, in a family that both have. It returns other
// texts unchanged.
func (q *question) resolve(ctx context.Context, namespace, from, to string) (source, destination string, err error) {
	sources, err := q.podAddresses(ctx, namespace, from)
	if err != nil {
		return "", "", err
	}
	destinations, err := q.clusterIPs(ctx, namespace, to)
	if err != nil {
		return "", "", err
	}
	for _, s := range sources {
		for _, d := range destinations {
			addr, notAddr := model.ParseAddr(s)
			at, notAt := model.ParseAddrPort(strings.SplitN(d, "/", 2)[0])
			if notAddr != nil || notAt != nil || addr.Is4() == at.Addr().Is4() {
				return s, d, nil
			}
		}
	}
	return sources[0], destinations[0], nil // parsePacket reports the different families
}

// podAddresses returns the addresses of pod/NAMESPACE/NAME, or another text unchanged.
func (q *question) podAddresses(ctx context.Context, namespace, from string) (list []string, err error) {
	kind, rest, _ := strings.Cut(from, "/")
	if !slices.Contains(kinds["Pod"], kind) {
		return []string{from}, nil
	}
	namespace, name, _, err := splitName(rest, namespace)
	if err != nil || namespace == "" || name == "" {
		return nil, fmt.Errorf("%q is not the name of a pod: use pod/NAMESPACE/NAME, or pod/NAME with -n", from)
	}
	err = q.client().Get(ctx, control.PagePod, &list, "namespace", namespace, "name", name)
	return list, err
}

// portNumber returns the number of a port, or 0.
func portNumber(text string) uint16 {
	n, _ := strconv.ParseUint(text, 10, 16) // 0 if it fails
	return uint16(n)
}

// namesService reports whether a text is svc/NAMESPACE/NAME:PORT, or NAMESPACE/NAME:PORT, and not an address.
func namesService(text string) bool {
	first, _, more := strings.Cut(text, "/")
	return slices.Contains(kinds["Service"], first) || more && first != "" && !strings.ContainsAny(first, ".:[")
}

// clusterIPs returns the cluster IPs of svc/NAMESPACE/NAME:PORT, each with port and protocol. It returns another text
// unchanged.
func (q *question) clusterIPs(ctx context.Context, namespace, to string) ([]string, error) {
	if !namesService(to) {
		return []string{to}, nil
	}
	namespace, name, port, err := splitName(to, namespace)
	if err != nil {
		return nil, err
	}
	port, protocol, _ := strings.Cut(port, "/")
	var v view.Services
	if err := (&selection{namespace: namespace}).get(ctx, q.client(), &v, name); err != nil {
		return nil, err
	}
	switch {
	case len(v.NotFound) > 0:
		return nil, errors.New(v.NotFound[0])
	case len(v.Services) > 1:
		return nil, fmt.Errorf("there are Services %s in several namespaces: use svc/NAMESPACE/%[1]s", name)
	}
	var list, inRange, ports []string
	for _, s := range v.Services {
		name = s.Namespace + "/" + s.Name
		for sp, f := range s.Frontends() {
			single, last, ranged := strings.Cut(f.Address, "-") // an address with a port, or with a range of ports
			at, err := netip.ParseAddrPort(single)
			if err != nil || f.Kind != "ClusterIP" || protocol != "" && !strings.EqualFold(protocol, sp.Protocol) {
				continue
			}
			numbers := fmt.Sprint(at.Port())
			if ranged {
				numbers += "-" + last
			}
			if known := strings.TrimPrefix(fmt.Sprintf("%s (%s/%s)", sp.Name, numbers, sp.Protocol), " "); !slices.Contains(ports, known) {
				ports = append(ports, known)
			}
			switch n := portNumber(port); {
			case !ranged && (port == "" || port == sp.Name || port == numbers):
				list = append(list, f.Address+"/"+sp.Protocol)
			case ranged && at.Port() <= n && n <= portNumber(last):
				inRange = append(inRange, netip.AddrPortFrom(at.Addr(), n).String()+"/"+sp.Protocol)
			}
		}
	}
	if len(list) == 0 { // single ports take precedence
		list = inRange
	}
	if len(list) == 0 || port == "" && len(ports) > 1 {
		return nil, fmt.Errorf("choose a port of Service %s: %s", name, strings.Join(ports, ", "))
	}
	return list, nil
}
