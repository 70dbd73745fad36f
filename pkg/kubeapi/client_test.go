package kubeapi

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestManagedFieldsAreNotWanted has the header Accept of lists and watches. test/e2e sends it to a real API server.
func TestManagedFieldsAreNotWanted(t *testing.T) {
	want := "application/vnd.kubernetes.protobuf;drop=metadata.managedFields,application/json;drop=metadata.managedFields"
	lab.Same(t, want, Accepted("application/vnd.kubernetes.protobuf"), "accepted media types")
}
