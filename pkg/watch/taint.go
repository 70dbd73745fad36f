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
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// StartupTaint removes a taint from the Node of this program once the Services of the Node are programmed, so that pods are scheduled there only
// afterwards.
type StartupTaint struct {
	Client kubernetes.Interface
	// Key is that of the taint, with any value and effect.
	Key string
	// Node returns the Node, or nil.
	Node func() *corev1.Node
	// Synced is closed after the first sync.
	Synced <-chan struct{}
}

// Run removes the taint until the context ends: a Node that is deleted and registered again has it again.
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
			next = pause
			logger.Error(err, "Cannot remove the taint from this Node; pods without a toleration are not scheduled to it", "taint", s.Key, "retry", next)
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

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string        `json:"op"`
	Path  string        `json:"path"`
	Value *corev1.Taint `json:"value,omitempty"`
}

// remove reports whether it has removed the taint. A Node that has changed meanwhile is left as it is, for the next attempt.
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
	_, err = s.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "kube-nftproxy"})
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w: apply deploy/startup-taint, which permits it", err)
	}
	return err == nil, err
}
