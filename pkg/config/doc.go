// Package config reads kube-proxy's command line and its KubeProxyConfiguration, with kube-proxy's defaults, precedence and
// validation, so that what starts a kube-proxy starts this program.
//
// In: flags, and the file that --config names.
// Out: one checked KubeProxyConfiguration, and notes about what has no meaning here.
// Never: a look at the node or at the cluster.
package config
