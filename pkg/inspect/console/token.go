package console

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// tokenFault returns the reason why a token file is of no use, or "". now is the time by which a token expires.
func tokenFault(path string, now time.Time) string {
	if path == "" {
		return ""
	}
	text, err := os.ReadFile(path)
	switch token := strings.TrimSpace(string(text)); {
	case err != nil:
		return fmt.Sprintf("cannot read the token file: %v", err)
	case token == "":
		return fmt.Sprintf("the token file %s is empty", path)
	case strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r == '\x7f' }):
		return fmt.Sprintf("the token file %s has more than one line, or characters that HTTP does not permit", path)
	default:
		if at := expiry(token); !at.IsZero() && now.After(at) {
			return fmt.Sprintf("the token in %s expired at %s, by the clock of this node", path,
				at.UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// expiry returns the time at which a token of a service account expires, a JSON Web Token (RFC 7519); otherwise the
// zero time. It trusts the token: only a text depends on it.
func expiry(token string) (at time.Time) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return at
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return at
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) == nil && claims.Expires > 0 {
		at = time.Unix(claims.Expires, 0)
	}
	return at
}

// tokenFix returns the fix for the token in a file.
func tokenFix(path string) string {
	return "write a valid token to " + path + ". In a pod, the kubelet writes it before the earlier one expires: check " +
		"the log of the kubelet"
}
