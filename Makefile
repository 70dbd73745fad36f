# `make` without a target lists the targets. Longer recipes are scripts in hack/.
.DEFAULT_GOAL := help

# Without this, go build fails as root in a checkout of another user, such as a volume of a container: git refuses to read it.
export GOFLAGS += -buildvcs=false

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/kube-nftproxy, a static binary
	hack/build.sh

image: ## build bin/image/kube-nftproxy.tar, an OCI image for amd64 and arm64; PUSH=registry/name:tag also pushes it
	hack/image.sh

plugin: ## build the kubectl plugin for all platforms, and its manifest for krew, in bin/plugin; VERSION=vX.Y.Z
	hack/plugin.sh

release: ## build the files of a release in bin/release/VERSION; VERSION=vX.Y.Z; KEY=file: a private key that signs them
	VERSION='$(VERSION)' KEY='$(KEY)' hack/release.sh

release-verify: ## verify the files of a release in bin/release/VERSION; VERSION=vX.Y.Z; PUBLIC_KEY=file: also the signature
	VERSION='$(VERSION)' PUBLIC_KEY='$(PUBLIC_KEY)' hack/release-verify.sh

demo: ## demonstrate the program in network namespaces, in a minute (root); API=1: with a real kube-apiserver; KEEP=1: and a prompt on the node
	API='$(API)' KEEP='$(KEEP)' hack/demo.sh

test: ## all lanes that CI runs: lint, house, unit, race, netns, hostile, e2e, ratios (root)
	hack/test.sh

test-unit: ## unit tests without privileges, with the race detector in packages that start goroutines or use locks
	hack/test.sh unit race

test-netns: ## all tests that need no API server, with real packets in network namespaces (root)
	hack/test.sh netns

test-hostile: ## objects of hostile tenants against packets of other tenants, in four minutes (root); HOSTILE_SEED, HOSTILE_STEPS: other and longer histories
	HOSTILE_SEED='$(HOSTILE_SEED)' HOSTILE_STEPS='$(HOSTILE_STEPS)' hack/test.sh hostile

test-e2e: ## tests with a real etcd and kube-apiserver; builds both first (root)
	hack/test.sh e2e

test-ratios: ## measure kube-proxy and kube-nftproxy in two minutes; fails if a ratio or a stage is wrong by a factor (root)
	hack/test.sh ratios

test-twin: ## the same packets through the rules of the real kube-proxy; builds it first (root)
	hack/test.sh twin

site: ## write the pages as a site into bin/site, with Hugo; builds it first, in three minutes
	hack/site.sh

test-site: ## the site in headless Chromium: links, search, narrow windows
	hack/test.sh site

test-release: ## a whole release, built twice and compared; cosign, Helm and QEMU use its files (root); builds them first
	hack/test.sh release

test-kernels: ## tests on other kernels, in virtual machines (root)
	hack/kernels.sh

soak: ## repeat faults and restarts under load for more than an hour, and the changes of a day in minutes (root); RESTARTS=1000 REPAIRS=20 CHANGES=8640000
	RESTARTS='$(RESTARTS)' REPAIRS='$(REPAIRS)' API_FAULT='$(API_FAULT)' CHAOS='$(CHAOS)' CHANGES='$(CHANGES)' SERVICES='$(SERVICES)' HISTORY_MINUTES='$(HISTORY_MINUTES)' hack/soak.sh

conformance: ## upstream's e2e tests of Services on real clusters in namespaces, for both proxies (root); KUBERNETES=v1.37.2 PROXY=both NODES=2 FOCUS=regexp; OUTPUT=. writes docs/conformance.md
	KUBERNETES='$(KUBERNETES)' PROXY='$(PROXY)' NODES='$(NODES)' FOCUS='$(FOCUS)' OUTPUT='$(OUTPUT)' SKEW='$(SKEW)' hack/conformance.sh

skew: ## kube-nftproxy with API servers of all supported releases (root); builds them first; OUTPUT=. writes docs/conformance.md
	SKEW=1 OUTPUT='$(OUTPUT)' hack/conformance.sh

neighbours: ## kube-nftproxy beside firewalls, container engines and network plugins, in 20 minutes (root); RUN=regexp; OUTPUT=. writes docs/compatibility.md
	RUN='$(RUN)' OUTPUT='$(OUTPUT)' hack/neighbours.sh

bench: ## measure kube-proxy and kube-nftproxy on real clusters, in one run (root); QUICK=1: five minutes; LIMITS=1: only objects at their limits; ALGORITHMS=1: only the algorithms; VIPS=1: only VIPs and port ranges; PACKETS=1: only first packets; DIRECT=1: only direct server return; GROWTH=1: only the growth of costs; CILIUM=1: beside Cilium's benchmark; OUTPUT=. writes the figures into docs/
	QUICK='$(QUICK)' LIMITS='$(LIMITS)' ALGORITHMS='$(ALGORITHMS)' VIPS='$(VIPS)' PACKETS='$(PACKETS)' TURNS='$(TURNS)' DIRECT='$(DIRECT)' CILIUM='$(CILIUM)' GROWTH='$(GROWTH)' SIZES='$(SIZES)' OUTPUT='$(OUTPUT)' hack/bench.sh

bench-kernels: ## measure the same ratios on other kernels, in virtual machines (root), half an hour for each; OUTPUT=. writes them into docs/
	OUTPUT='$(OUTPUT)' hack/bench-kernels.sh $(KERNELS)

bench-stages: ## run the benchmarks of each stage (root), in the format of benchstat; COUNT=10 repeats them
	hack/stages.sh

fuzz: ## fuzz all parsers, each target for FUZZTIME=30s; plain tests repeat the inputs that were found
	FUZZTIME='$(FUZZTIME)' hack/fuzz.sh $(TARGETS)

vuln: ## search for known vulnerabilities; queries vuln.go.dev
	hack/vuln.sh

lint: ## gofmt, go vet, staticcheck, errcheck, go mod tidy, actionlint
	hack/test.sh lint

verify: ## run the checks before a commit: lint, house rules, unit tests
	hack/test.sh lint house unit race

update: ## rewrite expected results of tests: goldens, the table in docs/flags.md, and the terminal picture of the README
	hack/update.sh

clean: ## delete bin/
	rm -rf bin

.PHONY: help build image plugin release release-verify demo test test-unit test-netns test-hostile test-e2e test-ratios test-twin site test-site test-release test-kernels soak conformance skew neighbours bench bench-kernels bench-stages fuzz vuln lint verify update clean
