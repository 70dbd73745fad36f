package kubelet

import (
	"fmt"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/seccomp"
)

// Spec is what becomes a container's program, as the command container reads it.
type Spec struct {
	// Root is a folder that nobody else uses, with the image's files and all mount points.
	Root         string
	ReadOnlyRoot bool
	// Join is the process ID of a container's program whose view of the file system to share, for kubectl exec. 0: none.
	Join      int
	Binds     []Bind
	Args, Env []string
	// Capabilities are the numbers of those that the program may have, unless it is privileged and may have all.
	Capabilities    []int
	Privileged      bool
	NoNewPrivileges bool
	// Filter is that of the profile of kind Localhost, or empty.
	Filter seccomp.Filter
}

// Bind shows a file or folder of the machine in a container.
type Bind struct {
	From, To string
	ReadOnly bool
}

// usual are the capabilities of a container that says nothing about them (containerd: pkg/oci, defaultUnixCaps).
var usual = []corev1.Capability{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
	"NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

var numbers = map[corev1.Capability]int{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FSETID": unix.CAP_FSETID, "FOWNER": unix.CAP_FOWNER,
	"MKNOD": unix.CAP_MKNOD, "NET_RAW": unix.CAP_NET_RAW, "SETGID": unix.CAP_SETGID, "SETUID": unix.CAP_SETUID,
	"SETFCAP": unix.CAP_SETFCAP, "SETPCAP": unix.CAP_SETPCAP, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"SYS_CHROOT": unix.CAP_SYS_CHROOT, "KILL": unix.CAP_KILL, "AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "NET_ADMIN": unix.CAP_NET_ADMIN,
	"SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// secure applies a container's security context.
func (s *Spec) secure(c *corev1.SecurityContext) error {
	if c == nil {
		c = &corev1.SecurityContext{}
	}
	if c.RunAsUser != nil && *c.RunAsUser != 0 {
		return fmt.Errorf("run as user %d: not done here", *c.RunAsUser)
	}
	s.Privileged = c.Privileged != nil && *c.Privileged
	s.ReadOnlyRoot = c.ReadOnlyRootFilesystem != nil && *c.ReadOnlyRootFilesystem
	s.NoNewPrivileges = c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation
	have := slices.Clone(usual)
	if c.Capabilities != nil {
		if slices.Contains(c.Capabilities.Drop, "ALL") {
			have = nil
		}
		have = slices.DeleteFunc(have, func(c1 corev1.Capability) bool { return slices.Contains(c.Capabilities.Drop, c1) })
		have = append(have, c.Capabilities.Add...)
	}
	for _, name := range have {
		number, known := numbers[name]
		if !known {
			return fmt.Errorf("capability %s: not known here", name)
		}
		s.Capabilities = append(s.Capabilities, number)
	}
	return nil
}

// environment lists the variables of a container: its own, and those by which every container knows the API server, which is
// a cluster IP.
func environment(p *corev1.Pod, c *corev1.Container, api *corev1.Service) (values map[string]string, err error) {
	values = map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": p.Spec.NodeName,
		"KUBERNETES_SERVICE_HOST": api.Spec.ClusterIP, "KUBERNETES_SERVICE_PORT": fmt.Sprint(api.Spec.Ports[0].Port),
	}
	if len(c.EnvFrom) > 0 {
		return nil, fmt.Errorf("envFrom of container %s: not done here", c.Name)
	}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			values[e.Name] = expand(e.Value, values)
		case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			values[e.Name] = p.Spec.NodeName
		default:
			return nil, fmt.Errorf("source of variable %s: not done here", e.Name)
		}
	}
	return values, nil
}

var reference = regexp.MustCompile(`\$\((\w+)\)`)

// expand puts variables in for $(NAME); what isn't known stays.
func expand(s string, values map[string]string) string {
	return reference.ReplaceAllStringFunc(s, func(ref string) string {
		if value, known := values[ref[2:len(ref)-1]]; known {
			return value
		}
		return ref
	})
}
