package cluster

import (
	"os"
	"strings"
	"testing"
)

func TestLastReleaseIsThatOfTheModule(t *testing.T) {
	text, err := os.ReadFile("../kubernetes/go.mod")
	if want := "k8s.io/kubernetes " + Releases[len(Releases)-1] + "\n"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("test/kubernetes/go.mod lacks %q (error %v)", want, err)
	}
}
