#!/usr/bin/env bash
# Runs upstream's e2e tests of Services on a real cluster of network namespaces, with kube-proxy and with kube-nftproxy:
# test/conformance. Needs root and 8 GiB of memory. The first build takes half an hour, a run 10 to 30 minutes for each proxy.
#   KUBERNETES=v1.37.2    release of the cluster and of the tests; default: that of test/kubernetes
#   PROXY=both            kube-proxy, kube-nftproxy or both
#   NODES=2               nodes, in three zones; with 6, only tests that need more than two nodes run, unless FOCUS is set
#   FOCUS=regexp          only tests with such a name
#   OUTPUT=.              writes the results into docs/conformance.json, and the tables into docs/conformance.md
#   SKEW=1                kube-nftproxy with kube-apiservers of several releases instead: TestSkew in test/e2e
# Usage: hack/conformance.sh
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" -eq 0 ] || { echo "conformance: network namespaces and mounts need root" >&2 && exit 1; }
hack/deps.sh
if [ -n "${SKEW:-}" ]; then
  hack/kubernetes.sh
  OUTPUT=${OUTPUT:+$(realpath "$OUTPUT")} REQUIRE_NETNS=1 exec go test -tags e2e,skew -count 1 -timeout 4h -run '^TestSkew$' -v ./test/e2e
fi

[ "$(uname -m)" = x86_64 ] || { echo "conformance: the images of the tests are made for x86_64 only" >&2 && exit 1; }
cache=$PWD/.cache/conformance
. hack/archive.sh
# What a node, a pod of the tests, and the tests' shell commands need.
packages=(
  bash bind9-dnsutils conntrack containernetworking-plugins coreutils curl dash findutils grep hostname iproute2 iptables iputils-ping
  libc-bin mount netcat-openbsd nftables procps runc sed socat tar util-linux wget
)

# root FOLDER: unpacks the root file system of the nodes and of the images.
root() {
  local folder=$1 name
  [ ! -d "$folder" ] || return 0
  system bookworm "$folder.part" "${packages[@]}"
  (
    cd "$folder.part"
    rm -rf usr/share/{doc,man,locale,info,perl} usr/lib/*/perl* var/cache var/lib/apt
    # Packages select these with scripts, which did not run here.
    for name in iptables ip6tables iptables-save iptables-restore ip6tables-save ip6tables-restore; do ln -sf xtables-nft-multi usr/sbin/$name; done
    ln -sf dash usr/bin/sh
    ln -sf nc.openbsd usr/bin/nc
    mkdir -p etc proc sys dev run tmp uploads var/lib var/log usr/libexec
    echo 'root:x:0:0:root:/root:/bin/sh' >etc/passwd
    echo 'root:x:0:' >etc/group
    echo 'hosts: files dns' >etc/nsswitch.conf
    echo 'tries = 1' >>etc/wgetrc # as wget of busybox, for which the tests are written
    cp /etc/protocols etc/protocols
    chmod 1777 tmp
  )
  mv "$folder.part" "$folder"
}

root "$cache/root"
hack/build.sh
export KUBERNETES=${KUBERNETES:-}
hack/kubernetes.sh etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy ginkgo e2e.test agnhost \
  regression-issue-74839 containerd containerd-shim-runc-v2 ctr coredns
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/conformance ./test/conformance
exec bin/conformance -root "$cache/root" -kubernetes "$KUBERNETES" -proxy "${PROXY:-both}" -nodes "${NODES:-2}" -focus "${FOCUS:-}" -output "${OUTPUT:-}"
