//go:build twin

package image

import "testing"

// TestArchitecturesAreTwins makes the image for both architectures.
func TestArchitecturesAreTwins(t *testing.T) {
	first, second := makeTwice(t, "amd64", "arm64")
	checkReproducible(t, first, second)
	checkImage(t, first, "amd64", "arm64")
}
