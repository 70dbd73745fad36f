package daemon

import "testing"

func TestPossibleCPUs(t *testing.T) {
	for list, want := range map[string]int{"0-255\n": 256, "0": 1, "0-3,8,10-11\n": 7, "": 0, "x": 0, "3-1": 0} {
		if got := possibleCPUs(list); got != want {
			t.Errorf("%q: %d, want %d", list, got, want)
		}
	}
}
