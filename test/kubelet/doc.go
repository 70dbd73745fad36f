// Package kubelet stands in, on the node of a lab, for what runs a DaemonSet's pods in a real cluster: the controller that
// makes them, the kubelet, and the container runtime. The pods are objects of the real API server, so that admission and
// validation have had their say; their containers are processes with the image as root, the volumes that the kubelet would
// mount, a token of the ServiceAccount, and the capabilities, read-only paths, privileges and Localhost seccomp profile of their securityContext.
// ConfigMaps are updated in place as the kubelet does it; programs that exit are restarted.
//
// Not here: resources, the seccomp profile RuntimeDefault, user IDs, the runtime's other namespaces, and all else that DaemonSets, Jobs and pods on this
// node don't use; a pod that asks for what isn't here stays pending, with a message.
//
// In: a cluster of test/cluster, a lab's node, images as folders.
// Out: running programs; status of pods and DaemonSets.
// Never: testing.T, a write to what belongs to the machine.
package kubelet
