package command

import (
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
)

// versionFlag is --version, with the values that kube-proxy accepts: true, false, raw for all details, or a version of Kubernetes
// that a vendor wants reported. The latter is accepted and ignored: this program's version is not one of Kubernetes.
type versionFlag string

// String implements pflag.Value.
func (v *versionFlag) String() string { return string(*v) }

// Type returns the name of the value in --help.
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

// text returns the text to print before exiting, or "".
func (v *versionFlag) text(version string) string {
	switch *v {
	case "true":
		return "kube-nftproxy " + version
	case "raw":
		return settings.Build(version)
	}
	return ""
}
