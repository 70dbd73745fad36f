// The version of flannel, which hack/neighbours.sh builds.
module github.com/kube-nftproxy/kube-nftproxy/test/neighbours/programs/flannel

go 1.26.0

require github.com/flannel-io/flannel v0.28.10
