package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shellImage has the programs that kube-proxy calls.
const shellImage = "localhost/shells:1"

// proxyConfiguration is the same for both programs.
const proxyConfiguration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
bindAddress: 0.0.0.0
clusterCIDR: %s
clientConnection:
  kubeconfig: /configuration/proxy.conf
conntrack:
  maxPerCore: 0 # the machine's limit stays
%s`

// loopback returns the part of the configuration with which releases since v1.37 serve node ports on loopback.
func loopback(version string) string {
	var minor int
	if _, err := fmt.Sscanf(version, "v1.%d.", &minor); err != nil || minor < 37 {
		return ""
	}
	return "nodePortAddresses: [primary, localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\n"
}

// startProxy starts a proxy as kubeadm does, and waits until it is healthy on all nodes.
func (w *world) startProxy(ctx context.Context, proxy string) error {
	path := w.ours
	if proxy == kubeProxy {
		path = w.program(kubeProxy)
	}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("version of %s: %w", path, err)
	}
	w.proxyVersion = proxy
	words := strings.Fields(string(version))
	if last := words[len(words)-1]; strings.HasPrefix(last, "v") { // a release, not a commit
		w.proxyVersion += " " + last
	}
	if _, err := w.api.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Create(ctx, daemonSet(proxy), metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, n := range w.nodes {
		err := n.process.Await(ctx, func(ctx context.Context) error {
			return n.run(ctx, "curl", "-sSf", "-m", "2", "-o", "/dev/null", "http://127.0.0.1:10256/healthz")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// daemonSet is kubeadm's, with a program of the node.
func daemonSet(proxy string) *appsv1.DaemonSet {
	labels := map[string]string{"k8s-app": "kube-proxy"}
	privileged, noToken, grace := true, false, int64(10)
	folder := func(path string) (corev1.Volume, corev1.VolumeMount) {
		name := strings.TrimPrefix(path, "/")
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}},
			corev1.VolumeMount{Name: name, MountPath: path}
	}
	programs, programsMount := folder("/programs")
	configuration, configurationMount := folder("/configuration")
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy", Namespace: metav1.NamespaceSystem, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					HostNetwork: true, AutomountServiceAccountToken: &noToken, PriorityClassName: "system-node-critical",
					TerminationGracePeriodSeconds: &grace, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{
						Name: "kube-proxy", Image: shellImage,
						Command:         []string{"/programs/" + proxy, "--config=/configuration/kube-proxy.yaml", "--hostname-override=$(NODE_NAME)", "--v=2"},
						Env:             []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
						SecurityContext: &corev1.SecurityContext{Privileged: &privileged},
						VolumeMounts:    []corev1.VolumeMount{programsMount, configurationMount},
					}},
					Volumes: []corev1.Volume{programs, configuration},
				},
			},
		},
	}
}
