// Package cluster runs a real etcd and kube-apiserver for a test or a demonstration: no kubelet, no controllers, no
// container runtime. What the missing controllers would write (EndpointSlices, the status of Nodes and Services), the
// caller writes with [Cluster.Apply]. The programs come from test/kubernetes by way of hack/kubernetes.sh; see [Build].
//
// In: a scratch folder, the Service ranges, optionally a network namespace.
// Out: client configurations for an administrator and for the user system:kube-proxy, and kubeconfig files of both.
// Never: a process that outlives the one that started it, or a file outside the scratch folder.
package cluster
