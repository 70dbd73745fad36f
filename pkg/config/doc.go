// Package config reads kube-proxy's command line and its KubeProxyConfiguration, with kube-proxy's defaults, precedence
// and validation, so that arguments and files for kube-proxy work unchanged.
//
// In: flags, and the file that --config names.
// Out: one checked KubeProxyConfiguration, and notes about settings without effect.
// Never: reads the node or the cluster.
package config
