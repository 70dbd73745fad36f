package doctor

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
)

// Arrival is a packet before the kernel routes it: To is the destination after its translation.
type Arrival struct {
	Device   string
	From, To netip.Addr
	Mark     uint32
}

// WhyNotRouted returns the reason why the kernel drops a packet when it routes it, with the fix. It returns "" if the
// routes forward or deliver the packet. The kernel checks the packet as a real one, but newer kernels report the same
// error for several checks.
func (c *Config) WhyNotRouted(a Arrival) string {
	routes := host.Routes{}
	err := routes.Arrives(a.Device, a.From, a.To, a.Mark)
	if err == nil {
		return ""
	}
	filtered := a.From.Is4() && (errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL))
	back, _, noWayBack := routes.Out(a.From)
	typ, _ := routes.Type(a.To) // 0 after an error
	switch value := c.ReversePath(a.Device); {
	case filtered && value > 0 && noWayBack != nil:
		return fmt.Sprintf("The kernel drops it by reverse path filtering (rp_filter = %d on %s): this node has no "+
			"route back to %s. Add a route.", value, a.Device, a.From)
	case filtered && value == Strict && back != a.Device:
		return fmt.Sprintf("The kernel drops it by strict reverse path filtering (rp_filter = 1 on %s): it arrives by %[1]s, but the route back to %s leaves by %s. "+
			"Correct the routes of this node or of the sender, or make the filter loose: "+
			"%s.", a.Device, a.From, back, LooseCommand(a.Device))
	case typ == unix.RTN_UNREACHABLE:
		return fmt.Sprintf("This node has no route to %s, or one of type unreachable, prohibit or blackhole (ip route "+
			"get %[1]s).", a.To)
	case !c.forwards(a):
		return fmt.Sprintf("This node does not forward packets that arrive by %s (forwarding = 0; kube-nftproxy "+
			"status has the fix).", a.Device)
	}
	mark := ""
	if a.Mark != 0 {
		mark = fmt.Sprintf(" mark 0x%x", a.Mark)
	}
	return fmt.Sprintf("The kernel cannot route it (%v), but other packets to this address: check the rules of policy "+
		"routing (ip rule). To see the kernel's answer: ip route get %s from %s iif %s%s.", err, a.To, a.From, a.Device,
		mark)
}

// forwards reports whether the node forwards packets that arrive by an interface, as far as the sysctls tell.
func (c *Config) forwards(a Arrival) bool {
	name := "net/ipv6/conf/all/forwarding"
	if a.From.Is4() {
		name = ipv4Conf + "/" + a.Device + "/forwarding"
	}
	n, ok := c.number(name)
	return !ok || n != 0
}
