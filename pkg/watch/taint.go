package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// StartupTaint removes a taint from this Node after the first sync. So the scheduler assigns pods to the node only when
// the node's rules are complete.
type StartupTaint struct {
	Client *kubeapi.Client
	// Key is the key of the taint. Its value and effect do not matter.
	Key string
	// Node returns the Node, or nil.
	Node func() *corev1.Node
	// Synced is closed after the first sync.
	Synced <-chan struct{}
}

// Run removes the taint whenever the Node has it, until the context ends: a Node that is deleted and registered again
// has the taint again.
func (s *StartupTaint) Run(ctx context.Context) error {
	select {
	case <-s.Synced:
	case <-ctx.Done():
		return nil
	}
	const soon, longest, seldom = time.Second, time.Minute, 10 * time.Second
	logger, pause := klog.FromContext(ctx), soon
	for ctx.Err() == nil {
		next := seldom
		removed, err := s.remove(ctx)
		switch {
		case err != nil:
			pause = min(2*pause, longest)
			next = wait.Jitter(pause, 1)
			logger.Error(err, "Cannot remove the taint from this Node; pods without a toleration are not scheduled "+
				"to it",
				"taint", s.Key, "retry", next)
		case removed:
			pause = soon
			logger.Info("Removed the taint from this Node: its Services are programmed", "taint", s.Key)
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
	return nil
}

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string        `json:"op"`
	Path  string        `json:"path"`
	Value *corev1.Taint `json:"value,omitempty"`
}

// remove removes the taint and reports whether it did. If the taint has moved in the list meanwhile, the API server
// rejects the patch, and the next attempt uses the new list.
func (s *StartupTaint) remove(ctx context.Context) (removed bool, err error) {
	node := s.Node()
	if node == nil {
		return false, nil
	}
	i := slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == s.Key })
	if i < 0 {
		return false, nil
	}
	path := fmt.Sprintf("/spec/taints/%d", i)
	patch, err := json.Marshal([]operation{{"test", path, &node.Spec.Taints[i]}, {"remove", path, nil}})
	if err != nil {
		return false, err
	}
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options := metav1.PatchOptions{FieldManager: "kube-nftproxy"}
	_, err = s.Client.Nodes.Patch(ctx, node.Name, types.JSONPatchType, patch, options)
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w: apply deploy/startup-taint, which permits it", err)
	}
	return err == nil, err
}
