#!/usr/bin/env bash
# Runs kube-nftproxy beside other programs that change the rules of a node, in network namespaces: test/neighbours. Needs root. The first
# run gets the programs from Debian and from the Go module proxy, into bin/neighbours: 1 GiB. A run takes minutes.
#   RUN=regexp   only neighbours with such a name
#   OUTPUT=.     writes the results into docs/compatibility.json, and the tables into docs/compatibility.md
# Usage: hack/neighbours.sh
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" -eq 0 ] || { echo "neighbours: network namespaces and mounts need root" >&2 && exit 1; }
hack/deps.sh
bin=$PWD/bin/neighbours cache=$PWD/bin/neighbours
. hack/archive.sh

packages=(
  bash coreutils dash grep sed findutils procps util-linux mount kmod iproute2 iptables nftables ipset
  dbus-daemon firewalld ufw docker.io keepalived fail2ban podman netavark aardvark-dns conntrack wireguard-tools
  libvirt-daemon-driver-network libvirt-clients dnsmasq-base sshguard crowdsec crowdsec-firewall-bouncer
)

# root FOLDER: unpacks a root file system with the neighbours.
root() {
  local folder=$1 name
  [ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ] || return 0
  system trixie "$folder.part" "${packages[@]}"
  (
    cd "$folder.part"
    rm -rf usr/share/{doc,man,locale,info} var/cache
    # Packages select these with scripts, which did not run here.
    for name in iptables ip6tables iptables-save iptables-restore ip6tables-save ip6tables-restore; do ln -sf xtables-nft-multi usr/sbin/$name; done
    ln -sf dash usr/bin/sh
    mkdir -p proc sys dev run tmp root etc var/lib var/log
    printf 'root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\n' >etc/passwd
    printf 'root:x:0:\nmessagebus:x:100:\ndocker:x:101:\n' >etc/group
    echo 'hosts: files' >etc/nsswitch.conf
    rm -rf etc/resolv.conf var/run
    ln -s /run var/run
    cp /etc/protocols /etc/services etc/
    chmod 1777 tmp
    echo "${packages[*]}" >packages
  )
  rm -rf "$folder"
  mv "$folder.part" "$folder"
}

root "$bin/root"
mkdir -p "$bin/programs"
hack/kubernetes.sh etcd coredns kube-apiserver
cp -u bin/kubernetes/{etcd,coredns} "$bin/programs/"

# flanneld, without two backends: tencent-vpc, whose library the Go module proxy may lack, and udp, which needs cgo.
flannel=v0.28.10
if [ "$("$bin/programs/flanneld" --version 2>&1)" != "$flannel" ]; then
  source=$(go mod download -json github.com/flannel-io/flannel@$flannel | jq -r .Dir)
  rm -rf "$bin/flannel"
  cp -r --no-preserve=mode "$source" "$bin/flannel"
  sed -i '/backend\/tencentvpc"\|backend\/udp"/d' "$bin/flannel/main.go"
  (cd "$bin/flannel" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/flannel-io/flannel/pkg/version.Version=$flannel" -o "$bin/programs/flanneld" .)
fi

# The network plugins; flannel's is of an older release.
for folder in . flannel; do
  (
    cd "test/neighbours/programs/$folder"
    version=$(go list -m -f '{{.Version}}' github.com/containernetworking/plugins)
    CGO_ENABLED=0 go build -trimpath -o "$bin/programs/" -ldflags "-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$version" tool
  )
done

# MetalLB's speaker, and the definitions of its objects.
mkdir -p "$bin/metallb"
(
  cd test/neighbours/programs/metallb
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$bin/programs/" tool
  cp --no-preserve=mode "$(go list -m -f '{{.Dir}}' go.universe.tf/metallb)"/config/crd/bases/*.yaml "$bin/metallb/"
)

# kube-router, as an engine of NetworkPolicies.
(
  cd test/neighbours/programs/kube-router
  version=$(go list -m -f '{{.Version}}' github.com/cloudnativelabs/kube-router/v2)
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=$version" -o "$bin/programs/" tool
)

(cd test/neighbours/programs/wireguard && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$bin/programs/wireguard-go" tool)
OUTPUT=${OUTPUT:+$(realpath "$OUTPUT")} REQUIRE_NETNS=1 exec go test -tags neighbours -count 1 -timeout 1h -run "Test(Neighbours|LocalRedirect)/${RUN:-}" -v ./test/neighbours
