package model

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Value is the type of the value of an annotation.
type Value struct {
	// Values are the valid values, in Markdown.
	Values string
	// Samples are valid values, and Wrong are values that become a problem. Tests draw from both.
	Samples, Wrong []string
	// Switch returns the field of a boolean annotation of Services; nil for all other annotations.
	Switch func(*Switches) *bool
	// set sets the fields for the value of a Service, or the fields for an invalid value, and returns the reason why
	// the value is invalid. A setter that adds its own problems returns nil.
	set func(b *builder, text string) error
	// weigh is set for an EndpointSlice.
	weigh func(w *sliceWeights, l *Limits, text string, invalid func(value, reason string))
}

// boolean is the type of a boolean annotation. An invalid value is false.
func boolean(field func(*Switches) *bool) Value {
	v := either(func(b *builder, on bool) { *field(&b.out.Switches) = on })
	v.Switch = field
	return v
}

// either is true or false. An invalid value is false.
func either(set func(b *builder, on bool)) Value {
	return Value{
		Values: "`true`, `false`", Samples: []string{"true", "false"}, Wrong: []string{"", "True", "yes"},
		set: func(b *builder, text string) error {
			if set(b, text == "true"); text != "true" && text != "false" {
				return errors.New(`must be "true" or "false"`)
			}
			return nil
		},
	}
}

// oneOf is one of several names. For an invalid value, oneOf sets the empty name.
func oneOf(set func(b *builder, name string), names ...string) Value {
	return Value{
		Values: "`" + strings.Join(names, "`, `") + "`", Samples: names,
		Wrong: []string{"", "?", strings.ToUpper(names[0])},
		set: func(b *builder, text string) error {
			if slices.Contains(names, text) {
				set(b, text)
				return nil
			}
			set(b, "")
			return fmt.Errorf("must be %s", alternatives(names))
		},
	}
}

// alternatives returns names as "a, b or c".
func alternatives(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// numbers are the numbers from least to most, with a unit such as " of seconds". For an invalid value, numbers sets 0.
func numbers(least, most uint16, unit string, set func(b *builder, n uint16), samples ...string) Value {
	return Value{
		Values: fmt.Sprintf("`%d` to `%d`", least, most), Samples: samples,
		Wrong: []string{"", "0", "-1", "1m", strconv.Itoa(int(most) + 1), "99999999999999999999"},
		set: func(b *builder, text string) error {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n < uint64(least) || n > uint64(most) {
				set(b, 0)
				return fmt.Errorf("must be a number%s from %d to %d", unit, least, most)
			}
			set(b, uint16(n))
			return nil
		},
	}
}
