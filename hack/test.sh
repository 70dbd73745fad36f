#!/usr/bin/env bash
# Runs the lanes of the tests, also after a lane has failed, and prints a summary. Usage: hack/test.sh [lane ...]
#   lint   checks of the source: see lint.sh
#   house  rules about source, documents and manifests
#   unit   tests without privileges of test, and of the packages of the program that start no goroutines and use no locks;
#          tests that need root are skipped
#   race   the same for the other packages, with the race detector
#   netns  the packages with tests in network namespaces, as root; no test may be skipped for missing privileges
#   hostile the program against hostile objects of a tenant, as root, without other lanes, because it bounds times
#   e2e    the tests with the build tag e2e: a real etcd and kube-apiserver
#   ratios kube-proxy and kube-nftproxy, measured on one small cluster; fails if a ratio is wrong by a factor
#   twin   the tests with the build tag twin, with the real kube-proxy; runs only if named
#   release  a whole release, twice, and its files: cosign, Helm, QEMU; runs only if named
#   site   the pages as a site, in headless Chromium; runs only if named
# The output of each lane, and of the build of Kubernetes, is kept in bin/test. The last line counts every test once, however many lanes ran it.
set -uo pipefail
cd "$(dirname "$0")/.."
lanes=(lint house unit race netns hostile e2e ratios)
[ $# -gt 0 ] || set -- "${lanes[@]}"
out=bin/test
rm -rf $out && mkdir -p $out
# The settings of hack/build.sh and hack/kubernetes.sh: so Go compiles each package once for tests, checks and programs, and only the race detector
# needs another copy.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath"

# all lists the packages but those of the house rules, which have a lane. The slow ones are first: go test starts the packages in this
# order, and nothing would run beside the last one.
all() {
  local slow=(./test/scenario ./pkg/plan ./pkg/apply)
  { go list "${slow[@]}" && go list ./...; } | grep -v '/test/house$' | awk '!seen[$0]++'
}

# matching reads a list of packages, and prints those with a file that contains a pattern.
matching() { # files, pattern
  local folders
  folders=$(grep -rlE --include="$1" "$2" cmd pkg test hack | xargs -n 1 dirname | sort -u)
  grep -E "/(${folders//$'\n'/|})\$"
}

# namespaces lists the packages with tests in network namespaces.
namespaces() { all | matching '*_test.go' '\b(EnterNamespace|ForTest)\(|REQUIRE_NETNS'; }

# concurrent lists the packages of the program that start goroutines or use locks. In the other packages, the race detector
# finds nothing, and makes the tests slower. A sync.OnceValue is no reason, because its value never changes.
concurrent() { all | grep -v /test/ | matching '*.go' '^\s*go |\.Go\(|\bsync\.(Once\b|[CMNPRW])|"sync/'; }

# tagged lists the packages that have tests with a build tag.
tagged() { # tag
  local format='{{.ImportPath}} {{.TestGoFiles}} {{.XTestGoFiles}}'
  comm -13 <(go list -f "$format" ./... | sort) <(go list -tags "$1" -f "$format" ./... | sort) | cut -d ' ' -f 1
}

# tests runs go test, keeps its output and shows a line for each package, and the tests that failed. The lane lint vets all packages.
tests() { # lane, arguments of go test...
  local lane=$1
  shift
  bin/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary skipped --jsonfile $out/$lane.json -- -count=1 -vet=off -timeout 15m "$@"
}

# Most tests of these lanes wait for half of their time, so more of them run than a machine of CI has processors.
waiting=(-p 3 -parallel 4)

# Root without capabilities has no more rights than another user, but can read the clone and Go's cache.
unprivileged=()
[ "$(id -u)" -ne 0 ] || unprivileged=(-exec 'setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all')

root() { [ "$(id -u)" -eq 0 ] || { echo "this lane creates network namespaces: run it as root" >&2 && return 1; }; }

# build starts to build the programs of the lane e2e. It takes minutes, and uses only the time in which the other lanes wait. built waits for its end.
build() { nice -n 19 hack/kubernetes.sh etcd etcdutl kube-apiserver kube-proxy kubectl kubeadm helm-v3 helm-v4 >$out/kubernetes.log 2>&1 & building=$!; }
built() { [ -z "${building:-}" ] || wait "$building" || { cat $out/kubernetes.log && return 1; }; }

lint() { hack/lint.sh $out/lint.json; }
house() { tests house ./test/house/...; }
unit() {
  local packages
  packages=$(all | grep -vxF "$(concurrent)") && tests unit "${unprivileged[@]}" $packages
}
race() {
  local packages
  packages=$(concurrent) && CGO_ENABLED=1 tests race -race "${waiting[@]}" "${unprivileged[@]}" $packages
}
netns() {
  local chroots
  # nft of sid changes from day to day: make test-kernels looks at it.
  root && chroots=$(hack/nfts.sh bookworm trixie) && REQUIRE_NETNS=1 NFT_CHROOTS=$chroots tests netns "${waiting[@]}" $(namespaces | grep -v '/test/hostile$')
}
hostile() { root && built && REQUIRE_NETNS=1 tests hostile -timeout 3h -parallel 3 ./test/hostile; } # HOSTILE_STEPS makes it long
e2e() {
  root || return 1
  local packages
  packages=$(tagged e2e)
  [ -n "$packages" ] || return 0
  # Each package and each parallel test runs an API server.
  built && REQUIRE_NETNS=1 tests e2e -tags e2e -p 2 -parallel 4 $packages
}
ratios() {
  root || return 1
  hack/build.sh && hack/kubernetes.sh etcd kube-apiserver kube-proxy && go build -o bin/compare ./test/compare &&
    bin/compare -check -outcomes $out/ratios.json
}
twin() {
  root || return 1
  local packages
  packages=$(tagged twin)
  hack/kubernetes.sh etcd kube-apiserver kube-proxy && REQUIRE_NETNS=1 tests twin -tags twin -run 'Twin|KubeProxy' -p 1 $packages
}
release() {
  root || return 1
  hack/deps.sh "qemu-s390x qemu-user" "skopeo skopeo" "man man-db" && hack/kubernetes.sh registry helm-v3 helm-v4 cosign && tests release -timeout 120m -tags release ./test/release
}
site() { tests site -tags site ./test/site; }

# sum_up prints a line for each lane, and sums up their tests.
sum_up() {
  printf '\n%-8s %-8s %8s\n' lane result seconds
  [ ${#results[@]} -eq 0 ] || printf '%-8s %-8s %8s\n' "${results[@]}"
  [ ${#files[@]} -eq 0 ] || jq -nrR -f hack/summary.jq "${files[@]}"
}

hack/deps.sh || exit 1
go build -modfile=hack/tools/go.mod -o bin/gotestsum gotest.tools/gotestsum || exit 1
results=() files=() status=0
trap sum_up EXIT
[[ " $* " != *" e2e "* ]] || build
for lane in "$@"; do
  echo "=== $lane"
  start=$SECONDS result=ok
  files+=($out/$lane.json)
  touch $out/$lane.json
  if ! "$lane"; then
    result=FAILED status=1
    # A lane can also fail without a test that fails.
    grep -qs '"Action":"fail"' $out/$lane.json || echo "{\"Action\":\"fail\",\"Package\":\"lane $lane\"}" >>$out/$lane.json
  fi
  results+=("$lane" "$result" "$((SECONDS - start))")
done
exit $status
