package main

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestModelOfMoreNodes: the model continues the line of the measured points, without their constant part.
func TestModelOfMoreNodes(t *testing.T) {
	c := &crowd{nodes: []float64{20, 50, 100}, cpu: []float64{3, 6, 11}, megabytes: []float64{20, 50, 100}}
	want := []string{"", "| Nodes that start at once (model) | processor time, s | bytes |", "|---|---|---|",
		"| 1000 | 100 | 1.0 GB |", "| 5000 | 500 | 5.0 GB |", "| 10000 | 1000 | 10.0 GB |"}
	lab.Same(t, want, c.model(), "model")
	c.nodes = c.nodes[:2]
	lab.Same(t, []string(nil), c.model(), "model of two points")
}
