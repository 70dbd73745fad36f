// Package printable shows texts of tenants, such as the zone of an endpoint, to people. A terminal executes control
// characters, and formatting characters can change the order of the characters of a line.
//
// In: any text.
// Out: the same text with escape sequences for these characters.
// Never: changes a letter, a digit, a symbol or a space.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns a text in which each character that is not graphic is an escape sequence of Go, such as \x1b or \u202e.
// The space is the only white space that stays.
func Text(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&out, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			out.WriteRune(r)
		default:
			out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		s = s[n:]
	}
	return out.String()
}
