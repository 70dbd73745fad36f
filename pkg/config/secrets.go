package config

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// hidden stands for an address that cannot be shown in part.
const hidden = "(not shown: it may hold a password)"

// WithoutSecrets returns an address without user, password, query and fragment. An address that cannot be parsed and may hold one of
// them is not shown at all.
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

// userInfo matches user and password of URLs: up to the last @ of a quoted string, or of a word.
var quotedUserInfo, userInfo = regexp.MustCompile(`("(?:[^"\\]|\\.)*?://)(?:[^"\\]|\\.)*@`), regexp.MustCompile(`://(?:[^\s"\\]|\\.)*@`)

// Redact returns a text, such as an error, without user and password of any URL in it.
func Redact(text string) string {
	return userInfo.ReplaceAllLiteralString(quotedUserInfo.ReplaceAllString(text, "$1"), "://")
}

// FlagValue returns the value of a flag as it may be shown: without passwords and tokens. Every output of flags uses it.
func FlagValue(f *pflag.Flag) string {
	if f.Name == "master" {
		return WithoutSecrets(f.Value.String())
	}
	return Redact(f.Value.String())
}
