package config

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// extended is a boolean flag with a third value, which includes true and also enables more.
type extended struct {
	on, more *bool
	// name is the third value.
	name string
}

// addExtended adds such a flag. Without a value, the flag is true.
func addExtended(fs *pflag.FlagSet, flag string, value extended, help string) {
	fs.Var(&value, flag, help)
	fs.Lookup(flag).NoOptDefVal = "true"
}

// String implements pflag.Value.
func (e *extended) String() string {
	switch {
	case e.on == nil: // pflag asks a zero value
		return ""
	case *e.more:
		return e.name
	}
	return strconv.FormatBool(*e.on)
}

// Set implements pflag.Value.
func (e *extended) Set(text string) (err error) {
	if *e.more = text == e.name; *e.more {
		*e.on = true
		return nil
	}
	if *e.on, err = strconv.ParseBool(text); err != nil {
		return fmt.Errorf("must be true, false or %s", e.name)
	}
	return nil
}

// Type implements pflag.Value.
func (e *extended) Type() string { return "string" }
