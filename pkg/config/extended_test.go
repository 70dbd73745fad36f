package config

import (
	"fmt"
	"testing"

	"github.com/spf13/pflag"
)

// TestExtendedFlags: the third value of a boolean flag includes true, and a later value replaces it.
func TestExtendedFlags(t *testing.T) {
	const flag = "--direct-server-return"
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "false false, false"},
		{[]string{flag}, "true false, true"},
		{[]string{flag + "=true"}, "true false, true"},
		{[]string{flag + "=all"}, "true true, all"},
		{[]string{flag + "=all", flag + "=true"}, "true false, true"},
		{[]string{flag + "=all", flag + "=false"}, "false false, false"},
		{[]string{flag + "=zones"}, `invalid argument "zones" for "--direct-server-return" flag: must be true, false or all`},
	} {
		o, fs := NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		err := fs.Parse(c.args)
		got := fmt.Sprintf("%v %v, %s", o.DirectReturn, o.DirectDefault, fs.Lookup("direct-server-return").Value)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: %s, want %s", c.args, got, c.want)
		}
	}
}
