package config

import "testing"

func TestWithoutSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"https://10.96.0.1:443":                     "https://10.96.0.1:443",
		"https://admin:hunter2@api.example/x?t=abc": "https://api.example/x",
		"https://a:b@c@api.example":                 "https://api.example",
		"https://token@api.example#frag":            "https://api.example",
		"https://api.example:%zz?token=abc":         hidden,
		"https://u:pass word@api.example":           hidden,
		"admin:hunter2@api.example":                 hidden,
		"10.0.0.1:6443":                             "10.0.0.1:6443",
		"":                                          "",
	} {
		if got := WithoutSecrets(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"ask https://a:s@10.0.0.1/api: no":                             "ask https://10.0.0.1/api: no",
		`Get "https://tok/en@api.example/x": refused, "http://h/p": y`: `Get "https://api.example/x": refused, "http://h/p": y`,
		`parse "https://u:a b@c@h": invalid userinfo`:                  `parse "https://h": invalid userinfo`,
		`invalid proxy address "http://u:a\"b@h:x"`:                    `invalid proxy address "http://h:x"`,
		`dial "https://10.0.0.1/": ask "b@c"`:                          `dial "https://10.0.0.1/": ask "b@c"`,
		"no address, mail@example":                                     "no address, mail@example",
	} {
		if got := Redact(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
