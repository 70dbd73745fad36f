// Conformance runs upstream's e2e tests of Services, for kube-proxy and for kube-nftproxy, on a real cluster on one machine:
//
//   - a network namespace with etcd, the API server, the controller manager, the scheduler, CoreDNS and a load balancer;
//   - nodes, which have all their namespaces and cgroups for themselves, a root file system, containerd, a kubelet and CNI plugins;
//   - a DaemonSet like kubeadm's with the proxy under test, with kube-proxy's configuration for both programs;
//   - upstream's e2e.test, as a client in the first namespace.
//
// The names of namespaces and cgroups begin with knc- and the number of this process. The pods' images are made of one root file system and
// of the programs that hack/kubernetes.sh builds: nothing is pulled.
//
// The control plane's programs and the kubelets are administrators; only the proxy has the permissions that it has in a cluster.
//
// In: the programs, a root file system; see hack/conformance.sh.
// Out: results as JSON and tables; for a failed test, logs of all nodes and a bundle of each of them.
// Never: a rule, a route or an address in the machine's own network namespace. One setting of the machine, the number of inotify
// instances, is raised where it is too small, and restored.
package main
