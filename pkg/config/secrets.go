package config

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// hidden replaces an address that cannot be shown in part.
const hidden = "(not shown: it may hold a password)"

// WithoutSecrets returns an address without user, password, query and fragment. It hides an address completely if it
// cannot be parsed and may contain one of them.
func WithoutSecrets(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		if strings.ContainsAny(address, "@?#") {
			return hidden
		}
		return address
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// quotedUserInfo matches user and password of a URL in a quoted string, userInfo those of a URL in a word. Both match
// up to the last @.
var quotedUserInfo, userInfo = regexp.MustCompile(`("(?:[^"\\]|\\.)*?://)(?:[^"\\]|\\.)*@`),
	regexp.MustCompile(`://(?:[^\s"\\]|\\.)*@`)

// Redact returns a text, such as an error, without the user and password of URLs.
func Redact(text string) string {
	return userInfo.ReplaceAllLiteralString(quotedUserInfo.ReplaceAllString(text, "$1"), "://")
}

// FlagValue returns the value of a flag without passwords and tokens. Use it wherever the value of a flag is shown.
func FlagValue(f *pflag.Flag) string {
	if f.Name == "master" {
		return WithoutSecrets(f.Value.String())
	}
	return Redact(f.Value.String())
}
