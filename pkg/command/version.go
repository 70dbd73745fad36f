package command

import (
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
)

// versionFlag is --version, in the forms that kube-proxy takes: true, false, raw for all that there is to say, or the version of
// Kubernetes that a vendor wants reported. The last one is accepted and ignored: this program's version isn't one of Kubernetes.
type versionFlag string

// String implements pflag.Value.
func (v *versionFlag) String() string { return string(*v) }

// Type names the value in --help.
func (v *versionFlag) Type() string { return "version" }

// Set implements pflag.Value.
func (v *versionFlag) Set(s string) error {
	if s == "raw" || strings.HasPrefix(s, "v") {
		*v = versionFlag(s)
		return nil
	}
	yes, err := strconv.ParseBool(s)
	*v = versionFlag(strconv.FormatBool(yes))
	return err
}

// text is what to print instead of doing anything else; "" for nothing.
func (v *versionFlag) text(version string) string {
	switch *v {
	case "true":
		return "kube-nftproxy " + version
	case "raw":
		return settings.Build(version)
	}
	return ""
}
