// Package cluster runs the original etcd and kube-apiserver for a test or a demonstration: no kubelet, no controllers, no
// container runtime. The caller writes the objects of the missing controllers (EndpointSlices, the status of Nodes and Services)
// with [Cluster.Apply]. The programs come from test/kubernetes through hack/kubernetes.sh; see [Build].
//
// In: a scratch folder, the Service ranges, optionally a network namespace.
// Out: client configurations for an administrator and for the user system:kube-proxy, and kubeconfig files of both.
// Never: leaves a process that outlives the one that started it, or writes a file outside the scratch folder.
package cluster
