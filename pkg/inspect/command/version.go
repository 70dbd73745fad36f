package command

import (
	"cmp"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// versions has the version of this program file and of the running program.
type versions struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
	// Running is the version of the running program. It is absent if none answers, and then Error is the reason.
	Running string `json:"running,omitempty"`
	Error   string `json:"error,omitempty"`
}

func newVersionCommand(version string) *cobra.Command {
	var q question
	var client bool
	cmd := &cobra.Command{
		Use: "version", Short: "Show the versions of this program file and of the running program", Args: cobra.NoArgs,
		Long: "version shows the versions of this program file and of the running program. They differ if the program file was replaced after the\n" +
			"start of the running program. If no program answers, version says so, and the exit code is 0.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Version: version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if !client {
				var running config.Running
				if err := q.client().Get(cmd.Context(), control.PageSettings, &running); err != nil {
					v.Error = err.Error()
				}
				v.Running = running.Version
			}
			return q.print(os.Stdout, &v, func(p *view.Printer) {
				p.Printf("program file  %s\n", strings.TrimPrefix(settings.Build(version), "kube-nftproxy "))
				if !client {
					p.Printf("running       %s\n", cmp.Or(v.Running, "unknown: "+v.Error))
				}
			})
		},
	}
	q.flags(cmd)
	cmd.Flags().BoolVar(&client, "client", false, "Show only the version of this program file.")
	return cmd
}

// versionFlag is --version, with the values that kube-proxy accepts: true, false, raw for all details, or a version of
// Kubernetes. Vendors set the last form to change the reported version. This program ignores it, because its version is
// not a version of Kubernetes.
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
