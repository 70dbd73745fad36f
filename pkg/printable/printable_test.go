package printable

import (
	"fmt"
	"testing"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"zone-a, 'b' \"c\" \\ é 日本 …": "zone-a, 'b' \"c\" \\ é 日本 …",
		"\x1b[2J\a\x00\x7f":           `\x1b[2J\a\x00\x7f`,
		"a\nb\tc\r":                   `a\nb\tc\r`,
		"\u0085\u009b":                `\u0085\u009b`,
		"a\xff\xc0b":                  `a\xff\xc0b`,
		"\u00a0\u2028\ufeff\u00ad":    `\u00a0\u2028\ufeff\u00ad`,
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	for _, r := range "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" { // the formatting characters for two directions
		if got, want := Text(string(r)), fmt.Sprintf(`\u%04x`, r); got != want {
			t.Errorf("%q: %q, want %q", r, got, want)
		}
	}
}
