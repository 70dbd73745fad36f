package config

import (
	"bytes"
	"os"
)

// Unread reports whether the configuration file has another content than that in force, and returns an error if this content cannot be read
// or is invalid. Without a file, it returns false.
func (o *Options) Unread() (changed bool, err error) {
	if o.File == "" {
		return false, nil
	}
	now, err := os.ReadFile(o.File)
	if err != nil {
		return true, err
	}
	if bytes.Equal(now, o.content) {
		return false, nil
	}
	return true, usable(now)
}
