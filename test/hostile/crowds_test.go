package hostile

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// crowd is an attack of several namespaces together on a quantity of the node.
type crowd struct {
	name string
	// limits is the value of --limits; empty for the defaults.
	limits string
	// namespaces are the numbers of attacking namespaces, each for another node. more are further numbers, for long
	// runs.
	namespaces, more []int
	// objects adds the Services of one of the attacking namespaces.
	objects func(c *crew)
}

// crew makes the objects of one of several attacking namespaces.
type crew struct {
	// prefix is the beginning of the names of the Services.
	namespace, prefix string
	// number is the number of the namespace, of the number of attacking namespaces.
	number, of int
	list       []runtime.Object
	services   int
}

// add adds a Service, created during the attack. change may be nil.
func (c *crew) add(p []corev1.ServicePort, change func(*corev1.Service)) *corev1.Service {
	name := fmt.Sprintf("%s/%ss%03d", c.namespace, c.prefix, c.services)
	at := c.number*512 + c.services // each namespace has fewer Services
	s := service(name, fmt.Sprintf("10.96.%d.%d", 32+at/200, 1+at%200))
	s.CreationTimestamp, s.Spec.Ports = meanwhile, p
	if change != nil {
		change(s)
	}
	c.services++
	c.list = append(c.list, s)
	return s
}

// serve adds endpoints to a Service.
func (c *crew) serve(s *corev1.Service, n int) {
	endpoints := addresses("10.244.16.1", n, 1)
	c.list = append(c.list, slice(s.Namespace+"/"+s.Name, 0, portNames(s.Spec.Ports), backendPort, endpoints...))
}

// share divides a number by the number of attacking namespaces, rounded up.
func (c *crew) share(n int) int { return (n + c.of - 1) / c.of }

// restricted gives a Service a load-balancer IP with n source ranges.
func restricted(n int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges(n)
		ip := strings.Replace(s.Spec.ClusterIP, "10.96.", "198.19.", 1)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	}
}

func annotated(name, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{"kube-nftproxy.io/" + name: value} }
}

// remembers gives a Service session affinity with a timeout in seconds.
func remembers(timeout int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout},
		}
	}
}

// timeouts are the timeouts that the program distinguishes.
var timeouts = [...]int32{
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 45, 60, 75, 90, 120, 125, 150, 180, 240, 300, 360, 420, 480,
	600, 750, 900, 1200, 1500, 1800, 2400, 2700, 3600, 4500, 5400, 7200, 9000, 10800, 14400, 18000, 21600, 28800, 36000,
	43200, 57600, 72000, 86400,
}

// servicePorts is more than the number of service ports of a node that have numbers.
const servicePorts = 264_000

// twoRanges are two ranges of ports.
const twoRanges = "tcp/20000-20001,tcp/20003-20004"

var crowds = []crowd{
	{name: "service ports without endpoints", namespaces: []int{2}, more: []int{5}, objects: func(c *crew) {
		for range c.share(servicePorts / 2_000) {
			c.add(ports(1, 2_000), nil)
		}
	}},
	{name: "service ports with endpoints", more: []int{2, 20}, objects: func(c *crew) {
		for range c.share(servicePorts / 2_000) {
			c.serve(c.add(ports(1, 2_000), nil), 1)
		}
	}},
	{name: "timeouts of session affinity", namespaces: []int{1, 5}, more: []int{2, 20}, objects: func(c *crew) {
		for _, t := range timeouts {
			c.serve(c.add(ports(80, 1), remembers(t)), 2)
		}
		for range 7 {
			c.serve(c.add(ports(1, max(300, c.share(1_900))), remembers(10_800)), 2)
		}
		c.serve(c.add(ports(1, 300), remembers(1)), 2)
		c.serve(c.add(ports(1, 300), annotated("max-connections", "10")), 2)
	}},
	{name: "source ranges", namespaces: []int{4, 20}, more: []int{2, 5}, objects: func(c *crew) {
		for range 40 {
			c.serve(c.add(ports(80, 1), restricted(62)), 1)
		}
		for range 20 {
			c.serve(c.add(ports(80, 1), restricted(1)), 1)
		}
	}},
	{name: "port ranges", namespaces: []int{5}, more: []int{2, 20}, objects: func(c *crew) {
		for range 125 {
			c.serve(c.add(ports(80, 1), annotated("port-ranges", twoRanges)), 1)
		}
	}},
	{name: "elements", limits: "node-elements=20000", namespaces: []int{5}, more: []int{2, 20}, objects: func(c *crew) {
		for range 25 {
			c.serve(c.add(ports(1, 20), nil), 10)
		}
		for range 100 {
			c.serve(c.add(ports(1, 1), nil), 1)
		}
	}},
	{name: "everything, with little room", limits: littleRoom, namespaces: []int{2, 5, 20}, objects: func(c *crew) {
		for i := range 10 + c.share(200) {
			c.serve(c.add(ports(1, 2), nil), 10)
			c.serve(c.add(ports(1, 2), restricted(1+i%4)), 10)
			c.serve(c.add(ports(1, 2), annotated("port-ranges", twoRanges)), 10)
			c.serve(c.add(ports(1, 2), remembers(timeouts[i%len(timeouts)])), 10)
		}
	}},
}

// littleRoom is a value of --limits with which a few Services use up the room of a node. With a limit of L, the half
// of a room that is reserved is enough for √(2L) namespaces, here more than 20.
const littleRoom = "node-elements=20000,node-source-ranges=400,node-port-ranges=300"

// TestCrowds: several namespaces together use up a quantity of the node. If they are more than four, one of four names
// is sorted after those of the victims. All other names are sorted before them. Victims that are older, and victims
// that are created during the attack, must have their properties during the attack, after a change of their endpoints,
// after a restart of the program, after a reboot, and on a node that joins. If HOSTILE_STEPS is greater than its
// default, the test has more numbers of namespaces.
func TestCrowds(t *testing.T) {
	for _, c := range crowds {
		numbers := c.namespaces
		if lab.Setting(t, "HOSTILE_STEPS", defaultSteps) > defaultSteps {
			numbers = append(numbers, c.more...)
		}
		for _, of := range numbers {
			t.Run(fmt.Sprintf("%s, %d", c.name, of), func(t *testing.T) { c.attack(t, of) })
		}
	}
}

// attack attacks a new node with a number of namespaces.
func (c *crowd) attack(t *testing.T, of int) {
	t.Parallel()
	n, early, late := newVictims(t, c.flags()...)
	objects, services := c.all(of)
	n.absorbed(func() { n.put("crowd", objects...) }, services)
	n.served("during the attack", early)
	n.absorbed(func() { n.create("late", later, late) }, len(late))
	all := append(early, late...)
	n.served("created during the attack", late)
	n.move("early", earlier, early)
	n.move("late", later, late)
	n.served("after a change during the attack", all)
	n.restart()
	n.served("after a restart", all)
	n.reboot()
	forget(all)
	n.served("after a reboot", all)
	n.Kill()
	n.joined(func(j *node) {
		forget(all)
		j.served("on a new node", all)
	})
}

func (c *crowd) flags() []string {
	if c.limits == "" {
		return nil
	}
	return []string{"--limits", c.limits}
}

// all returns the objects of all attacking namespaces, and the number of their Services.
func (c *crowd) all(of int) (list []runtime.Object, services int) {
	for i := range of {
		name := fmt.Sprintf("aevil-%d", i)
		if of > 4 && i%4 == 3 {
			name = fmt.Sprintf("zzevil-%d", i)
		}
		crew := &crew{namespace: name, number: i, of: of}
		c.objects(crew)
		list, services = append(list, crew.list...), services+crew.services
	}
	return list, services
}
