package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// runDaemonSets makes and deletes pods as the controller does.
func (k *Kubelet) runDaemonSets(ctx context.Context) error {
	node, exists, err := k.nodes.GetByKey(k.Node)
	if err != nil || !exists {
		return fmt.Errorf("find node %s: %w", k.Node, err)
	}
	owned := map[types.UID][]*corev1.Pod{}
	for _, p := range items[*corev1.Pod](k.pods) {
		if owner := metav1.GetControllerOf(p); owner != nil {
			owned[owner.UID] = append(owned[owner.UID], p)
		}
	}
	var errs []error
	for _, d := range items[*appsv1.DaemonSet](k.daemonSets) {
		errs = append(errs, k.runDaemonSet(ctx, d, owned[d.UID], Suits(node.(*corev1.Node), d.Spec.Template.Spec)))
		delete(owned, d.UID)
	}
	for _, orphans := range owned {
		for _, p := range orphans {
			errs = append(errs, k.delete(ctx, p))
		}
	}
	return errors.Join(errs...)
}

func (k *Kubelet) runDaemonSet(ctx context.Context, d *appsv1.DaemonSet, pods []*corev1.Pod, suits bool) error {
	template, err := json.Marshal(d.Spec.Template)
	if err != nil {
		return err
	}
	revision := fmt.Sprintf("%x", sha256.Sum256(template))[:10]
	errs := []error{k.keep(ctx, d, revision, template)}
	status := appsv1.DaemonSetStatus{ObservedGeneration: d.Generation}
	if suits {
		status.DesiredNumberScheduled = 1
	}
	for _, p := range pods {
		current := p.Labels[appsv1.ControllerRevisionHashLabelKey] == revision
		if !suits || !current && d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
			errs = append(errs, k.delete(ctx, p))
			continue
		}
		status.CurrentNumberScheduled = 1
		if current {
			status.UpdatedNumberScheduled = 1
		}
		if ready(p) {
			status.NumberReady, status.NumberAvailable = 1, 1
		}
	}
	if suits && len(pods) == 0 {
		errs = append(errs, k.create(ctx, d, revision))
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	if !sameStatus(d.Status, status) {
		d = d.DeepCopy()
		d.Status = status
		_, err := k.client.AppsV1().DaemonSets(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keep keeps a DaemonSet's history, for kubectl rollout undo.
func (k *Kubelet) keep(ctx context.Context, d *appsv1.DaemonSet, revision string, template []byte) error {
	api := k.client.AppsV1().ControllerRevisions(d.Namespace)
	selector := metav1.FormatLabelSelector(d.Spec.Selector)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	latest, name := int64(0), d.Name+"-"+revision
	var this *appsv1.ControllerRevision
	for i := range list.Items {
		latest = max(latest, list.Items[i].Revision)
		if list.Items[i].Name == name {
			this = &list.Items[i]
		}
	}
	switch {
	case this == nil:
		r := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: d.Spec.Selector.MatchLabels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
			},
			Data:     runtime.RawExtension{Raw: fmt.Appendf(nil, `{"spec":{"template":{"$patch":"replace",%s}}`, template[1:])},
			Revision: latest + 1,
		}
		_, err = api.Create(ctx, r, metav1.CreateOptions{})
	case this.Revision < latest:
		this.Revision = latest + 1
		_, err = api.Update(ctx, this, metav1.UpdateOptions{})
	}
	return err
}

func sameStatus(a, b appsv1.DaemonSetStatus) bool {
	encode := func(s appsv1.DaemonSetStatus) string { text, _ := json.Marshal(s); return string(text) } // it has plain fields
	return encode(a) == encode(b)
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// create makes the pod of a DaemonSet, bound to the node at once. Its name is always the same, lest there be two.
func (k *Kubelet) create(ctx context.Context, d *appsv1.DaemonSet, revision string) error {
	p := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
	p.Namespace, p.Name, p.Spec.NodeName = d.Namespace, d.Name+"-"+revision[:5], k.Node
	p.Labels = maps.Clone(p.Labels)
	p.Labels[appsv1.ControllerRevisionHashLabelKey] = revision
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	_, err := k.client.CoreV1().Pods(d.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

func (k *Kubelet) delete(ctx context.Context, p *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return nil
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	if err := k.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, options); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// Suits tells whether a DaemonSet's pods may run on a node, by its labels.
func Suits(n *corev1.Node, s corev1.PodSpec) bool {
	have := labels.Set(n.Labels)
	if !labels.SelectorFromSet(s.NodeSelector).Matches(have) {
		return false
	}
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil || s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	for _, term := range s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		all := true
		for _, e := range term.MatchExpressions {
			operator := map[corev1.NodeSelectorOperator]selection.Operator{
				corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
				corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
			}[e.Operator]
			r, err := labels.NewRequirement(e.Key, operator, e.Values)
			all = all && err == nil && r.Matches(have)
		}
		if all {
			return true
		}
	}
	return false
}
