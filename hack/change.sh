#!/usr/bin/env bash
# Lists the functions that run for one replaced endpoint of a Service with two endpoints, from the changed file to the
# kernel's acknowledgement, and prints the numbers of functions, files and packages (root). A program that counts the
# calls of its statements runs twice in a network namespace, with 10 and with 30 changes in the same time. The functions
# are those with a statement that ran at least 15 times more: a busy machine commits some changes together.
# pkg/watch/manifests replaces the API server, and does not count.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -cover -covermode=atomic -coverpkg=./pkg/...,./cmd/... -o "$work/program" ./cmd/kube-nftproxy

slice() { # the last byte of the second endpoint
  cat >"$work/slice" <<END
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.2.2], nodeName: node-1}, {addresses: [10.1.3.$1], nodeName: node-2}]
END
  mv "$work/slice" "$work/manifests/slice.yaml"
}

profile() { # the number of changes: one every half second, of 30 possible ones
  rm -rf "$work/manifests" && mkdir "$work/manifests" "$work/calls-$1"
  cat >"$work/manifests/service.yaml" <<END
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 10.1.1.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
END
  slice 1
  GOCOVERDIR=$work/calls-$1 unshare -n bash -c "ip link set lo up; ip addr add 10.1.1.1/32 dev lo
    exec '$work/program' --manifests '$work/manifests' --hostname-override node-1 --cluster-cidr 10.1.0.0/16 \
      --conntrack-max-per-core 0 --conntrack-min 0 --control-socket '' --v 2" 2>"$work/log" &
  timeout 60 bash -c "until grep -q Synced '$work/log'; do sleep 0.2; done"
  SECONDS=0
  for i in $(seq 2 31); do
    [ "$i" -gt $(($1 + 1)) ] || slice "$i"
    sleep 0.5
  done
  [ "$1" != 30 ] || lasts=$SECONDS
  until [ "$SECONDS" -ge "$lasts" ]; do sleep 0.1; done # periodic work runs equally often in both profiles
  kill $! && wait $!
  go tool covdata textfmt -i "$work/calls-$1" -o "$work/profile-$1"
}

profile 30
profile 10
# The profile of these statements.
awk 'NR == FNR { before[$1] = $3; next }
  /^mode:/ { print "mode: set"; next }
  !/pkg\/watch\/manifests\// { print $1, $2, ($3 - before[$1] >= 15) }' \
  "$work/profile-10" "$work/profile-30" >"$work/profile"
go tool cover -func "$work/profile" | awk '$NF != "0.0%" && $1 != "total:" {
  split($1, at, ":"); folder = at[1]; sub("/[^/]*$", "", folder)
  print "  " at[1], $2; functions++; files += !file[at[1]]++; packages += !package[folder]++
} END { print functions " functions, " files " files, " packages " packages" }'
