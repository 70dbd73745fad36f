package main

import "testing"

func TestPossibleCPUs(t *testing.T) {
	for list, want := range map[string]int{"0-255\n": 256, "0": 1, "0-3,8,10-11\n": 7, "": 0, "x": 0, "3-1": 0} {
		if got := possibleCPUs(list); got != want {
			t.Errorf("%q: %d, want %d", list, got, want)
		}
	}
}

func TestConnectionsAreCountedUnlessToldOtherwise(t *testing.T) {
	for args, want := range map[string]bool{"": true, "--count-connections": true, "--count-connections=false": false} {
		d := &daemon{settings: parse(t, args)}
		if got := !d.planOptions().Uncounted; got != want {
			t.Errorf("%q: %t, want %t", args, got, want)
		}
	}
}
