package view

import "time"

// Settings are the version and the configuration of the running program.
type Settings struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Node is the name of its Node.
	Node string `json:"node"`
	// Config is its KubeProxyConfiguration in effect, as YAML. Limits and CountConnections are the settings without a field in it.
	Config           string         `json:"config"`
	Limits           map[string]int `json:"limits,omitempty"`
	CountConnections bool           `json:"countConnections"`
}
