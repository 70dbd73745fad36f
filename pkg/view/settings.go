package view

import "time"

// Settings are the version and the configuration of the running program.
type Settings struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Node is the name of its Node.
	Node string `json:"node"`
	// Config is the KubeProxyConfiguration in effect, as YAML. Limits, CountConnections and CountZones are settings of
	// the tables that have no field in it.
	Config           string         `json:"config"`
	Limits           map[string]int `json:"limits,omitempty"`
	CountConnections bool           `json:"countConnections"`
	CountZones       bool           `json:"countZones,omitempty"`
	// RefuseUnusedPorts and AnswerPing are the values of these flags.
	RefuseUnusedPorts string `json:"refuseUnusedPorts,omitempty"`
	AnswerPing        string `json:"answerPing,omitempty"`
	// DirectReturn permits direct server return.
	DirectReturn bool `json:"directServerReturn,omitempty"`
	// HostPorts is true if the host ports of this node's pods are served.
	HostPorts bool `json:"hostPorts,omitempty"`
}
