// Gates prints the feature gates that kube-proxy knows, one per line: name, stage, default, and "locked" where it can't be set
// to anything else. The file pkg/config/gates.txt is made with it.
package main

import (
	"fmt"
	"slices"
	"strings"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() {
	var lines []string
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		stage := string(spec.PreRelease)
		if stage == "" {
			stage = "GA"
		}
		line := fmt.Sprintf("%s %s %t", name, stage, spec.Default)
		if spec.LockToDefault {
			line += " locked"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	fmt.Println(strings.Join(lines, "\n"))
}
