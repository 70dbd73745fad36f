package config

import (
	"bytes"
	"os"
)

// Unread reports whether the content of the configuration file differs from the configuration in use. It returns true
// and an error if the file cannot be read, or if its new content is invalid. Without a file, it returns false.
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
	return true, checkContent(now)
}
