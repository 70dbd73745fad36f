package daemon

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// parse returns the settings for flags.
func parse(t *testing.T, args string) *settings.Settings {
	t.Helper()
	o := config.NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	err := fs.Parse(strings.Fields(args))
	if err == nil {
		err = o.Complete(fs)
	}
	if err == nil {
		err = o.Validate()
	}
	lab.Must(t, err)
	s, err := settings.New(o, fs)
	lab.Must(t, err)
	return s
}
