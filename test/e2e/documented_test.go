//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	docpage "github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// documents are the pages whose commands run: all except architecture.md, in which the same markup contains drawings.
func documents(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(found) < 12 {
		t.Fatalf("%d pages in docs: %v", len(found), err)
	}
	found = slices.DeleteFunc(found, func(name string) bool { return filepath.Base(name) == "architecture.md" })
	return append(found, "../../README.md", "../../SECURITY.md", "../../deploy/README.md")
}

// notRun are the commands that this test does not run, by reason. test/house checks those of make and go test.
var notRun = map[string][]string{
	"another program; tests of hack/image and test/image read the same file": {
		"ctr -n k8s.io images import bin/image/kube-nftproxy.tar",
		"podman load -i bin/image/kube-nftproxy.tar",
		"docker load -i bin/image/kube-nftproxy.tar",
		"kind load image-archive bin/image/kube-nftproxy.tar",
		"kubectl krew install --manifest=bin/plugin/nftproxy.yaml --archive=bin/plugin/kubectl-nftproxy-linux-amd64.tar.gz",
		"skopeo copy --all oci-archive:bin/image/kube-nftproxy.tar docker://registry.example.com/kube-nftproxy:v0.1.0",
		"skopeo inspect docker://registry.example.com/kube-nftproxy:v0.1.0 | jq .Labels",
		"skopeo inspect --raw docker://registry.example.com/kube-nftproxy:v0.1.0 | sha256sum",
	},
	"TestVerifyRefuses (test/release) runs it": {
		"openssl ecparam -name prime256v1 -genkey -noout -out release.pem",
		"openssl pkey -in release.pem -pubout -out release.pub",
		"openssl dgst -sha256 -verify release.pub -signature <(base64 --decode SHA256SUMS.sig) SHA256SUMS",
		"sha256sum --check SHA256SUMS",
	},
	"TestWhole (test/release) runs it, with a registry on a loopback address": {
		"cosign verify-blob --key release.pub --signature SHA256SUMS.sig --insecure-ignore-tlog SHA256SUMS",
		"cosign verify-blob-attestation --key release.pub --signature provenance.intoto.jsonl --type slsaprovenance1 " +
			"--insecure-ignore-tlog kube-nftproxy-linux-amd64",
		"cosign sign --key cosign.key --use-signing-config=false --tlog-upload=false " +
			"registry.example.com/kube-nftproxy@sha256:DIGEST",
		"cosign verify --key cosign.pub --insecure-ignore-tlog registry.example.com/kube-nftproxy@sha256:DIGEST",
		"helm push kube-nftproxy-0.2.0.tgz oci://registry.example.com/charts",
		"skopeo copy oci-archive:kube-nftproxy-chart-oci.tar docker://registry.example.com/charts/kube-nftproxy:0.2.0",
	},
	"it is named, not recommended": {
		"docker login", "git describe", "nft -f", "nft list", "kubeadm upgrade", "kubeadm init", "helm upgrade", "helm uninstall",
		"helm test", "helm push",
	},
	"TestKubeadmAddon runs it": {"kubectl -n kube-system rollout restart daemonset/kube-proxy"},
	"TestDeploy runs it": {
		"kubectl -n kube-system rollout undo daemonset/kube-nftproxy",
		"helm upgrade kube-nftproxy deploy/chart --namespace kube-system --values my-values.yaml --set config.mode=ebpf",
	},
	"TestChartEqualsKustomize runs it, with a version": {"helm package deploy/chart"},
	"no container engine is here, and TestDemoToTheEnd runs the demo": {
		`docker run --rm -it --privileged -v "$PWD:/src" -w /src golang:1.26 make demo`,
	},
	"it measures the source code": {
		"hack/change.sh", "go run ./hack/tokens pkg cmd", "go doc ./pkg/plan Planner | grep -c '^func (p'",
		"git grep -hE '^type \\w+ interface' pkg/proxy ':!*_test.go' | wc -l",
		"git ls-files test '*_test.go' ':!*go.sum' | xargs cat | wc -l",
		"git ls-files 'docs/*.md' ':!docs/decisions' ':!docs/upstream' | wc -l",
		"go test ./pkg/proxy -skip Test -bench Rolling -benchtime 300x",
	},
	"TestFIPS (test/release) builds and runs the program": {"GOFIPS140=v1.0.0 make image", "go version -m"},
	"it changes the checkout":                             {"git checkout REVISION && go version"},
	"the page says that it isn't tested": {
		"kubeadm upgrade apply v1.36.3 --skip-phases=addon/kube-proxy",
		"kubeadm upgrade node --patches /etc/kubernetes/patches",
		"kubectl -n kube-system debug node/node-1 -it --profile=sysadmin --image=registry.example.com/kube-nftproxy:v0.1.0 -- kube-nftproxy preflight --root=/host",
	},
	"the page says that it comes from the documentation of a distribution, which no test runs": {
		"kind create cluster --config=kind.yaml",
		"minikube start --container-runtime=containerd --extra-config=kubeadm.skip-phases=addon/kube-proxy",
		"minikube image load bin/image/kube-nftproxy.tar",
		"minikube ip",
		"systemctl restart k3s",
		"k3d cluster create --k3s-arg '--disable-kube-proxy@server:*'",
		"k3d image import bin/image/kube-nftproxy.tar",
		"talosctl -n CONTROL_PLANE_IP patch mc --mode=no-reboot --patch @patch.yaml",
		"kops update cluster --yes",
		"kops rolling-update cluster --yes",
		"aws eks delete-addon --cluster-name my-cluster --addon-name kube-proxy",
		"az aks update --resource-group my-group --name my-cluster --kube-proxy-config kube-proxy.json",
		`kubectl patch networks.operator.openshift.io cluster --type merge -p '{"spec":{"deployKubeProxy": false}}'`,
	},
	"TestKubeadmUpgradeKeepsTheImage runs its phase addon kube-proxy": {"kubeadm upgrade apply v1.37.2 --patches /etc/kubernetes/patches"},
	"TestOperatorAsksAboutTheNode runs it, with packets":              {"trace FROM ADDRESS:PORT --live"},
	"TestVIPs runs it": {
		"kube-nftproxy trace 10.244.0.11 203.0.113.10:81",
		"kube-nftproxy services default/media",
		"kube-nftproxy trace 10.244.0.11 203.0.113.20:15000/udp",
	},
	"TestZonesPage runs it": {
		"curl -s http://127.0.0.1:10249/metrics | grep ^kubenftproxy_service_zone_connections_total",
	},
	"it needs the metrics server": {"kubectl top pod"},
	"TestDebugging runs it": {
		"kube-nftproxy diff -f /etc/kube-nftproxy/planned",
	},
}

// installProfile puts the seccomp profile on a node.
const installProfile = "install -D -m 0644 deploy/seccomp/kube-nftproxy.json /var/lib/kubelet/seccomp/kube-nftproxy.json"

// reader is an operator who follows the pages.
type reader struct {
	*site
	// inPod and onNode are the first directories in PATH: kube-nftproxy then runs in the pod, or on a node without one.
	inPod, onNode string
}

// documented are the commands of the pages in the order of execution, with their expected results.
var documented = []struct {
	command string
	run     func(r *reader, command string)
}{
	// The cluster, from another machine.
	{"kubectl apply -k deploy/base", says(`daemonset\.apps/kube-nftproxy`)},
	{installProfile, (*reader).confined},
	{"kubectl get services -A -o jsonpath='{range .items[?(@.spec.externalIPs)]}{.metadata.namespace}/{.metadata.name} {.spec.externalIPs}{\"\\n\"}{end}'", says(`(?m)^default/two \["203\.0\.113\.10"\]$`)},
	{"go build -o /usr/local/bin/ ./cmd/kubectl-nftproxy", (*reader).install},
	{"kubectl apply -k deploy/monitoring", (*reader).applyMonitoring},
	{"kubectl -n kube-system get pods -l k8s-app=kube-nftproxy -o wide", says(`kube-nftproxy-\w+ +1/1 +Running .* node-1 `)},
	{"kubectl -n kube-system exec kube-nftproxy-x7f2p -- kube-nftproxy status", says(`health +healthy[,\n]`, "kube-nftproxy-x7f2p", "$POD")},
	{"kubectl -n kube-system exec daemonset/kube-nftproxy -- kube-nftproxy status", says(`health +healthy[,\n]`)},
	{"kubectl nftproxy node-1 status", says(`(?s)health +healthy[,\n].*API server +https://`)},
	{"kubectl nftproxy status", says(`(?s)NODE +HEALTH +VERSION +LAST SYNC +PROBLEMS\nnode-1 +healthy .* none\n.*1 node, 1 without`)},
	{"sed -i 's|newName: .*|newName: registry.example.com/kube-nftproxy|; s|newTag: .*|newTag: v0.1.0|' deploy/preflight/kustomization.yaml",
		says(``, "registry.example.com/kube-nftproxy", ourImage)},
	{"kubectl apply -k deploy/preflight", says(`daemonset\S*kube-nftproxy-preflight created`)},
	{"kubectl nftproxy preflight", says(
		`(?m)^NODE +PREFLIGHT +KERNEL +PRESENT PROXY +PROBLEMS\nnode-1 +ready +\d.* none\n\n1 node, 1 without`,
		"kubectl nftproxy", "kubectl -n kube-system rollout status daemonset/kube-nftproxy-preflight && kubectl nftproxy")},
	{"kubectl nftproxy -l k8s-app=kube-nftproxy-preflight node-007 preflight --root=/host", says(`kernel +\d`, "node-007", "node-1")},
	{"kubectl delete -k deploy/preflight", says(`kube-nftproxy-preflight" deleted`)},
	{"kubectl nftproxy node-1 services", says(`default/web:http +ClusterIP `)},
	{"kubectl nftproxy --of default/cart status", says(`health +healthy[,\n]`)},
	{"kubectl nftproxy --all verify", says(`^node-1: OK: 2 tables`)},
	{"kubectl nftproxy node-1 bundle", says(`kube-nftproxy-node-1-.*\.tar\.gz\n`)},
	{"kubectl nftproxy trace pod/default/cart svc/default/web:http", ends(2, "pod/default/cart has no address yet")},
	{"kubectl nftproxy NODE status", says(`health +healthy[,\n]`, "NODE", "node-1")},
	{"kubectl describe pod", says(`Name: +cart\n`)},
	{"kubectl get events -A --field-selector source=kube-nftproxy", says(`Warning +NotProgrammed +service/(one|two) .*203\.0\.113\.10`)},
	{"kubectl get events --all-namespaces --field-selector reason=NotProgrammed", says(`service/(one|two)`)},
	{"kubectl get events --field-selector reason=KubeProxyRunning", says(`No resources found`)},
	{"kubectl -n kube-system logs --previous POD", says(`Received all Services|Synced|adopted`, "POD", "$POD")},
	{"kubectl -n kube-system rollout status daemonset/kube-nftproxy", says(`successfully rolled out`)},
	{"kubectl -n kube-system get configmap -l k8s-app=kube-nftproxy --sort-by .metadata.creationTimestamp", says(`(?s)kube-nftproxy-\w+ +2 .*kube-nftproxy-\w+ +2 `)},
	{"kubectl -n kube-system get pods -l k8s-app=kube-nftproxy -o jsonpath='{range .items[*]}{.spec.volumes[?(@.name==\"config\")].configMap.name}{\"\\n\"}{end}' | sort | uniq -c", says(`^ +1 kube-nftproxy-\w+\n$`)},
	{"kubectl get servicecidrs", says(`kubernetes +10\.96\.0\.0/\d+`)},
	{"kubectl get services,endpointslices,servicecidrs,nodes -A -o yaml", (*reader).saveObjects},
	{"kube-nftproxy diff -f objects.yaml --hostname-override node-1 --config new.conf", (*reader).diffConfig},
	{"kubectl -n kube-system exec -i kube-nftproxy-x7f2p -- kube-nftproxy diff --config - < new.conf", ends(1, `(?m)^\+ ip chain .* 10\.99\.0\.0 `, "kube-nftproxy-x7f2p", "$POD")},
	{"kubectl -n kube-system port-forward POD 10249", (*reader).portForward},
	{"kubectl annotate service web kube-nftproxy.io/terminate-connections=gone", says(`service/web annotated`)},
	{"kubectl annotate service web kube-nftproxy.io/spread-connections=10", says(`service/web annotated`)},
	{"curl http://NODE:10249/metrics", says(`kubenftproxy_build_info\{`, "NODE", "192.0.2.1")},

	// An upgrade on one node.
	{"kubectl apply -k deploy/canary", says(`daemonset\.apps/kube-nftproxy-canary created`)},
	{"kubectl label node node-1 service-proxy=kube-nftproxy", (*reader).upgrade},
	{"kubectl -n kube-system rollout status daemonset/kube-nftproxy-canary", says(`successfully rolled out`)},
	{"kubectl label node node-1 service-proxy-", (*reader).undoUpgrade},
	{"kubectl label node -l service-proxy=kube-nftproxy service-proxy-", says(`^$`)}, // none has the label any more
	{"kubectl delete -k deploy/canary", says(`daemonset\.apps "kube-nftproxy-canary" deleted`)},

	// The program's own commands, in its pod.
	{"kube-nftproxy --config /var/lib/kube-proxy/config.conf", says(`System initialized`, "config.conf", "config.conf --init-only")},
	{"kube-nftproxy status", says(`health +healthy[,\n]`)},
	{"kube-nftproxy services", says(`default/web:http +ClusterIP +10\.96\.0\.10:80/TCP +1 of 4 `)},
	{"kube-nftproxy services default/web", says(`(?s)\+ 10\.244\.0\.10:8080 +ready +on this node\n.*TCP connections to endpoints that leave`)},
	{"kube-nftproxy services --wrong", ends(1, `default/api`)},
	{"kube-nftproxy services default/api", ends(1, `10\.96\.0\.11:9090 .*\n +refused: no endpoint`)},
	{"kubectl annotate service reports kube-nftproxy.io/scale-to-zero=true", says(`service/reports annotated`)},
	{"kube-nftproxy services default/reports", says(`held: no endpoint; the client retries, and is refused after 2m0s`)},
	{"kubectl annotate service dns kube-nftproxy.io/conntrack-timeouts=udp=5s/30s,tcp=1h",
		says(`service/reports annotated`, "service dns", "service reports")},
	{"kube-nftproxy services dns", says(`a new TCP connection for 1h0m0s`, "services dns", "services reports")},
	{"kube-nftproxy trace node svc/default/reports:grpc", ends(1, `no endpoints: held, so that the client retries\n +100 % +dropped`)},
	{"kubectl get events --field-selector reason=Demand", (*reader).wake},
	{"curl -s http://127.0.0.1:10249/metrics | grep ^kubenftproxy_service_demand", (*reader).demand},
	{"kube-nftproxy services default/edge", says(`health check node port 32000`)},
	{"kube-nftproxy services 10.96.0.10", says(`\+ 10\.244\.0\.10:8080 `)},
	{"kube-nftproxy services svc/default/web 10.244.1.30:8443 30443", says(`(?s)Service default/edge\n.*Service default/web\n`)},
	{"kube-nftproxy services -n default --sort-by .name -o name", says(`service/default/api\n(.*\n)*service/default/edge\n`)},
	{"kube-nftproxy trace node svc/default/web:http", says(`Service port: default/web:http\n`)},
	{"diff --config FILE", ends(1, `(?m)^[+-] ip `, "FILE", "- < new.conf")},
	{"diff --nodeport-addresses=primary", says(`^$`)},
	{"services NAMESPACE/NAME", says(`Service default/web\n`, "NAMESPACE/NAME", "default/web")},
	{"services NAMESPACE/NAME --try", says(`\+ 10\.244\.0\.10:8080 .* answers in `, "NAMESPACE/NAME", "default/web")},
	{"services --wrong", ends(1, `(?s)default/api.*default/(one|two)`)},
	{"kube-nftproxy trace 10.244.1.7 10.96.0.10:80", says(`(?s)Service port: default/web:http.*10\.244\.0\.10:8080`)},
	{"kube-nftproxy trace 10.244.1.7:40000 10.96.0.10:80", says(`(?s)Service port: default/web:http.*10\.244\.0\.10:8080`)},
	{"trace FROM ADDRESS:PORT", says(`10\.244\.0\.10:8080`, "FROM ADDRESS:PORT", "node 10.96.0.10:80")},
	{"kube-nftproxy trace 10.244.0.11 10.96.0.10:80", says(`100 % +to 10\.244\.0\.10:8080`)},
	{"kube-nftproxy trace 198.51.100.7 203.0.113.8:443", ends(1, `100 % +dropped\n`)},
	{"kubectl annotate service edge kube-nftproxy.io/denied-source-ranges=198.51.100.66/32 kube-nftproxy.io/node-port-source-ranges=none", says("annotated")},
	{"kube-nftproxy services edge -o wide", says(`(?s)203\.0\.113\.8:443.*allowed sources: 198\.51\.100\.0/24; denied sources: 198\.51\.100\.66/32.*30443.*allowed sources: none; denied sources: 198\.51\.100\.66/32`)},
	{"kube-nftproxy trace 198.51.100.66 203.0.113.8:443", ends(1, `in the denied source ranges\n +100 % +dropped\n`)},
	{"kubectl annotate service edge kube-nftproxy.io/denied-source-ranges- kube-nftproxy.io/node-port-source-ranges-", says("annotated")},
	{"render -f FOLDER", says(`(?s)table ip kube-nftproxy \{.*"default/web:http"`, "FOLDER", "- < services/all.yaml")},
	{"diff -f FOLDER", ends(1, `(?m)^- ip map services: .*10\.96\.0\.`, "FOLDER", "- < services/all.yaml")},
	{"kube-nftproxy verify", says(`OK: 2 tables, `)},
	{"kube-nftproxy verify --flows", says(`OK: of \d+ entr(?:y|ies) of connection tracking, 0 are stale`)},
	{"kube-nftproxy preflight", says(`(?s)kernel +\d.*kube-nftproxy +runs: kube-proxy, pid \d+`)},
	{"kube-nftproxy preflight --service-cidrs=10.96.0.0/12,fd00:10:96::/112", says(`service CIDRs +10\.96\.0\.0/12`)},
	{"kube-nftproxy status -o json | jq -r '.findings[].reason'", says(`(?m)^ConntrackStrict$`)},
	{"kube-nftproxy watch", shows(`default/web changed [+-]10\.244\.0\.1`)},
	{"watch -o json", shows(`"service":"default/web"`)},
	{"kube-nftproxy bundle", says(`^/run/kube-nftproxy/kube-nftproxy-[0-9-]+\.tar\.gz\n$`)}, // the pod's root file system is read-only
	{"kube-nftproxy bundle -o - > bundle.tar.gz", says(`status\.`, "bundle.tar.gz", "bundle.tar.gz && tar tzf bundle.tar.gz")},
	{"kube-nftproxy status -o json | jq -r '.findings[] | select(.severity == \"wrong\") | .fix'", (*reader).fix},
	{"kube-nftproxy services -o json | jq -r '.services[] | select(.ports[].endpoints == []) | .namespace + \"/\" + .name'", says(`(?m)^default/api$`)},
	{"kube-nftproxy completion bash", says(`^$`, "bash", "bash | bash -n")},

	// The node.
	{"curl -s http://127.0.0.1:10249/proxyMode; echo", says(`^nftables\n$`)},
	{"curl -s http://127.0.0.1:10256/healthz; echo", says(`"healthy": ?true`)},
	{"curl -s http://127.0.0.1:10256/readyz", says(`^ok\n$`)}, // the page shows it before the first sync: TestDeploy has this state
	{"curl -s http://127.0.0.1:10249/metrics | grep -E '^kube(proxy_sync_proxy_rules_last_timestamp|nftproxy_)'", says(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds\S* \d`)},
	{"curl 'http://127.0.0.1:10249/debug/pprof/goroutine?debug=2'", says(`goroutine \d+ `)},
	{"nft list map ip kube-nftproxy services", says(`10\.96\.0\.12 \. tcp \. 443 .*"default/edge:https`)},
	{"nft list map ip kube-nftproxy singles", says(`10\.96\.0\.10 \. tcp \. 80 .*"default/web:http`)},
	{"nft get element ip kube-nftproxy services '{ 10.96.0.12 . tcp . 443 }'", says(`10\.96\.0\.12 \. tcp \. 443 `)},
	{"nft list ruleset", says(`(?s)table ip kube-nftproxy \{.*"default/web:http`)},
	{"ss -lntup", says(`LISTEN .*:30443 .*users:`)},
	{"sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports", says(`net\.ipv4\.ip_local_port_range = \d+\s\d+\nnet\.ipv4\.ip_local_reserved_ports = *\n`)},
	{"sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767", says(`ip_local_reserved_ports = 30000-32767\n`)},
	{"cat /proc/sys/net/netfilter/nf_conntrack_{count,max}", says(`^\d+\n\d+\n$`)},
	{"nft --debug=netlink -f file", says(`\[ cmp eq reg 1 0x00005000 \]`, "file", "<(echo 'table ip x { chain y { tcp dport 80 accept; }; }')")},

	// An instance beside the default one.
	{"kubectl apply -k deploy/beside", (*reader).installBeside},
	{"kubectl -n kube-system rollout status daemonset/kube-nftproxy-try", says("successfully rolled out")},
	{"kubectl label service web service.kubernetes.io/service-proxy-name=try", says("labeled")},
	{"kubectl -n kube-system exec daemonset/kube-nftproxy-try -- kube-nftproxy services --service-proxy-name=try", says(`(?s)^[^\n]*\ndefault/web:http +ClusterIP +10\.96\.0\.10:80/TCP `)},
	{"kubectl -n kube-system exec daemonset/kube-nftproxy-try -- kube-nftproxy trace --service-proxy-name=try node 10.96.0.10:80", says(`Service port: default/web:http`)},
	{"kubectl -n kube-system exec daemonset/kube-nftproxy-try -- kube-nftproxy status --service-proxy-name=try", (*reader).statusBeside},
	{"kubectl label service web service.kubernetes.io/service-proxy-name-", says("unlabeled")},
	{"kubectl delete -k deploy/beside", (*reader).removeBeside},
	{"kube-nftproxy --cleanup --service-proxy-name=try", (*reader).cleanupBeside},

	{"kubectl apply -k deploy/startup-taint", says(`validatingadmissionpolicybinding\S* created`)},
	{"kubectl apply -k deploy/host-ports", says(`clusterrolebinding\S*/kube-nftproxy-host-ports created`)},
	{"kubectl apply -k deploy/flow-control", says(`flowschema\S* created`)},

	// The node, after the deletion of the pods.
	{"kube-nftproxy --cleanup", (*reader).cleanup},
	{"bin/kube-nftproxy --manifests ./services --hostname-override $(hostname) --cluster-cidr 10.244.0.0/16", (*reader).serveManifests},
	{"nft delete table ip kube-nftproxy; nft delete table ip6 kube-nftproxy", (*reader).deleteTables},
	{"ip netns add x", says(`^x\n$`, "add x", "add x && ip netns list")},
}

// TestEveryCommandIsRun fails for a new or changed command on a page, and for a tested command that is on no page.
func TestEveryCommandIsRun(t *testing.T) {
	where, runs := map[string]string{}, map[string]bool{}
	for _, name := range documents(t) {
		text := mustRead(t, name)
		for _, c := range docpage.Commands(text) {
			where[c.Text] = fmt.Sprintf("%s:%d", strings.TrimPrefix(name, "../../"), c.Line)
		}
	}
	add := func(command string) {
		if where[command] == "" || runs[command] {
			t.Errorf("no page has %q, or it is here twice", command)
		}
		runs[command] = true
	}
	for _, d := range documented {
		add(d.command)
	}
	for _, commands := range notRun {
		for _, command := range commands {
			add(command)
		}
	}
	for _, name := range []string{migrating, deployPage} { // TestMigrating, TestDeploy and TestRemoteBases run all of them
		for _, blocks := range mustReadPage(t, name, "sh") {
			for _, block := range blocks {
				for _, c := range docpage.Commands("```sh\n" + block + "```\n") {
					runs[c.Text] = true
				}
			}
		}
	}
	lookedUp := regexp.MustCompile(`^([A-Z_]+=\S+ )*(make|go test)\b`)
	for command, at := range where {
		if !runs[command] && !lookedUp.MatchString(command) {
			t.Errorf("%s: no test runs %q: add it to those of TestDocumentedCommands", at, command)
		}
	}
	if len(runs) < 80 {
		t.Errorf("only %d commands are run", len(runs))
	}
}

// TestDocumentedCommands runs the commands of the pages verbatim, except for documented placeholders.
func TestDocumentedCommands(t *testing.T) {
	r := newReader(t)
	for _, d := range documented {
		if !t.Run(d.command, func(t *testing.T) { r.T = t; d.run(r, d.command) }) {
			break
		}
	}
	r.T = t
}

// newReader creates a cluster with the objects on the pages, and makes the pod's program restart once.
func newReader(t *testing.T) *reader {
	r := &reader{site: newSite(t, lab.Config{Pods: 2}, nil)}
	r.inPod, r.onNode = filepath.Join(r.dir, "in-pod"), filepath.Join(r.checkout, "bin")
	inPod := "#!/bin/sh\nexec kubectl --namespace kube-system exec --stdin daemonset/kube-nftproxy --container kube-nftproxy -- kube-nftproxy \"$@\"\n"
	manifests, err := os.ReadFile("testdata/debugging.yaml")
	err = errors.Join(err, os.Mkdir(r.inPod, 0o700), copyFile(program, filepath.Join(r.onNode, "kube-nftproxy")),
		os.WriteFile(filepath.Join(r.inPod, "kube-nftproxy"), []byte(inPod), 0o700), //nolint:gosec // it is executed
		os.Mkdir(filepath.Join(r.checkout, "services"), 0o700), os.WriteFile(filepath.Join(r.checkout, "services", "all.yaml"), manifests, 0o600))
	must(t, err)
	r.sh(`kubectl apply -f services
kubectl patch service edge --subresource=status -p '{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.8"}]}}}'`)
	for _, name := range []string{"one", "two"} { // with one age to the second, either one may be the older one
		svc := service(name)
		svc.Spec.Ports[0].Port, svc.Spec.ExternalIPs = 81, []string{"203.0.113.10"}
		svc.Spec.Ports = svc.Spec.Ports[:1]
		r.apply(svc)
	}
	reports := service("reports")
	reports.Spec.Ports = []corev1.ServicePort{{Name: "grpc", Port: 9090}}
	r.apply(reports)
	r.createPod("cart")
	serve(t, inet.TCP, 30443, r.Node)
	serve(t, inet.TCP, backendPort, r.Pods[0])
	// All commands run under the seccomp profile. A call that the profile lacks kills the program, so that no call is missed.
	r.sh(r.onMachine(installProfile) + `
sed -i 's/"SCMP_ACT_ERRNO"/"SCMP_ACT_KILL_PROCESS"/' ` + r.kubelet.Machine() + `/var/lib/kubelet/seccomp/kube-nftproxy.json
printf 'components:\n  - ../seccomp\n' >> deploy/base/kustomization.yaml`)
	r.sh(fmt.Sprintf(configured, r.api.Server()))
	r.sh(`printf 'enableProfiling: true\nmetricsBindAddress: 0.0.0.0:10249\n' >> deploy/base/config.conf; kubectl apply -k deploy/base
kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s`)
	_, before := r.pod("kube-nftproxy")
	before.Kill()
	_ = exits(r, before.Program) // it was killed
	p, _ := r.pod("kube-nftproxy")
	r.environ = append(r.environ, "POD="+p.Name)
	return r
}

// command prepares a script to run on a host as in a reader's shell. It has a /run of its own, because programs of
// other tests have their sockets in that of the machine.
func (r *reader) command(ctx context.Context, h *lab.Host, script string) *lab.Cmd {
	path := r.inPod
	if r.pods() == 0 {
		path = r.onNode
	}
	if regexp.MustCompile(`^(services|trace|render|diff|watch) `).MatchString(script) {
		script = "kube-nftproxy " + script
	}
	// A shell that runs the tests in the background makes them ignore SIGINT.
	cmd := h.Command(ctx, "env", "--default-signal=INT", "unshare", "--mount", "bash", "-c", `mount -t tmpfs tmpfs /run && PATH=`+path+`:$PATH && eval "$1"`, "bash", script)
	cmd.Dir, cmd.Env = r.checkout, r.environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	return cmd
}

// pods returns the number of the program's pods.
func (r *reader) pods() int {
	list, err := r.api.Client().CoreV1().Pods("kube-system").List(r.Context(), metav1.ListOptions{LabelSelector: "k8s-app=kube-nftproxy"})
	must(r, err)
	return len(list.Items)
}

// says runs a command until it succeeds and prints a match. replacements are pairs of old and new text in the command.
func says(pattern string, replacements ...string) func(*reader, string) {
	return ends(0, pattern, replacements...)
}

// ends does the same as says with another exit code.
func ends(code int, pattern string, replacements ...string) func(*reader, string) {
	return func(r *reader, command string) {
		r.ends(code, pattern, strings.NewReplacer(replacements...).Replace(command))
	}
}

func (r *reader) ends(code int, pattern, script string) {
	r.Helper()
	eventually(r, patience, func() error {
		cmd := r.command(r.Context(), r.Node, script)
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return err
		}
		if got := cmd.ProcessState.ExitCode(); got != code || !regexp.MustCompile(pattern).Match(out) {
			return fmt.Errorf("%s: exit code %d, want %d, and %q in:\n%s", script, got, code, pattern, out[:min(len(out), 4000)])
		}
		return nil
	})
}

// step is an expected line with the following action.
type step struct {
	pattern string
	do      func()
}

// wake connects to a Service without endpoints, and runs a command that shows the Event.
func (r *reader) wake(command string) {
	addr := netip.AddrPortFrom(r.clusterIPs("reports")[0].Addr(), 9090)
	if a := r.Node.Probe(r.Context(), inet.TCP, addr, lab.Options{}); a.Outcome != lab.TimedOut {
		r.Errorf("a connection to a Service without endpoints: %s", a)
	}
	r.ends(0, `Normal +Demand +service/reports +a client connects `, command)
}

// demand runs a command that shows the demand for a Service without endpoints, and removes the Service's annotation.
func (r *reader) demand(command string) {
	r.ends(0, `^kubenftproxy_service_demand\{namespace="default",service="reports"\} 1\n$`, command)
	r.sh("kubectl delete service reports")
}

// follow runs a command on a host, carries out the steps at their lines, and stops it by Ctrl-C.
func (r *reader) follow(h *lab.Host, script string, steps ...step) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	cmd := r.command(ctx, h, script)
	out, in, err := os.Pipe()
	must(r, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	in.Close()
	must(r, err)
	said := ""
	for lines := bufio.NewScanner(out); len(steps) > 0 && lines.Scan(); {
		said += lines.Text() + "\n"
		if regexp.MustCompile(steps[0].pattern).MatchString(lines.Text()) {
			steps[0].do()
			steps = steps[1:]
		}
	}
	cancel()
	err = cmd.Wait() // for some, Ctrl-C is an error
	if len(steps) > 0 {
		r.Errorf("%s: %v, and no %q in:\n%s", script, err, steps[0].pattern, said)
	}
}

// shows runs watch, replaces an endpoint once it listens, and waits for a matching line.
func shows(pattern string) func(*reader, string) {
	return func(r *reader, command string) {
		r.follow(r.Node, command, step{"^Watching", func() {
			for _, address := range []string{"10.244.0.11", "10.244.0.10"} {
				r.sh(`kubectl patch endpointslice web-x7f2p --type=json -p '[{"op":"replace","path":"/endpoints/0/addresses/0","value":"` + address + `"}]'`)
			}
		}}, step{pattern, func() {}})
	}
}

// saveObjects runs a command, and keeps its output for diffConfig.
func (r *reader) saveObjects(command string) {
	r.sh(command + " > objects.yaml")
}

// diffConfig shows the effect of another clusterCIDR on the node, without the program.
func (r *reader) diffConfig(command string) {
	diff := func() (string, error) {
		out, err := r.command(r.Context(), r.Node, "PATH=bin:$PATH; "+command).CombinedOutput()
		return string(out), err
	}
	r.sh("cp deploy/base/config.conf new.conf")
	if out, err := diff(); err != nil || out != "" {
		r.Errorf("with the present configuration: %v\n%s", err, out)
	}
	r.sh("sed -i 's|^clusterCIDR: .*|clusterCIDR: 10.99.0.0/16|' new.conf")
	out, err := diff()
	if err == nil || !strings.Contains(out, "+ ip chain ") || !strings.Contains(out, " 10.99.0.0 ") {
		r.Errorf("with another clusterCIDR: %v\n%s", err, out)
	}
}

// upgrade moves the node to the canary, whose image is that of deploy/base.
func (r *reader) upgrade(command string) {
	r.ends(0, `node/node-1 labeled`, command)
	eventually(r, patience, func() error { return r.servedBy("kube-nftproxy-canary") })
}

func (r *reader) undoUpgrade(command string) {
	r.ends(0, `node/node-1 unlabeled`, command)
	eventually(r, patience, func() error { return r.servedBy("kube-nftproxy") })
}

// onMachine replaces the folder of the kubelet by that of the kubelet's stand-in.
func (r *reader) onMachine(command string) string {
	return strings.Replace(command, " /var", " "+r.kubelet.Machine()+"/var", 1)
}

// confined runs the command that newReader has run. The pod's program runs under the filter.
func (r *reader) confined(command string) {
	r.sh(strings.Replace(r.onMachine(command), "kubelet/seccomp/", "kubelet/seccomp/another/", 1))
	_, d := r.pod("kube-nftproxy")
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Pid()))
	if err != nil || !regexp.MustCompile(`(?m)^Seccomp:\s2$`).Match(text) {
		r.Errorf("the program has no filter: %v\n%s", err, text)
	}
}

// install builds the plugin in the repository, of which the checkout is a part.
func (r *reader) install(command string) {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), "sh", "-c", strings.Replace(command, "/usr/local/bin/", r.inPod+"/", 1))
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("%v: %s", err, out)
	}
}

// monitoringKinds creates the kinds of the Prometheus operator, without validation.
const monitoringKinds = `for kind in PodMonitor PrometheusRule; do cat <<END
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ${kind,,}s.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: $kind, plural: ${kind,,}s, singular: ${kind,,}}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
END
done | kubectl apply -f -`

func (r *reader) applyMonitoring(command string) {
	r.sh(monitoringKinds)
	r.ends(0, `(?s)configmap/kube-nftproxy-dashboard .*podmonitor\.monitoring\.coreos\.com/.*prometheusrule\.monitoring\.coreos\.com/`, command)
}

// portForward requests the status page from another machine.
func (r *reader) portForward(command string) {
	r.follow(r.Client, strings.Replace(command, "POD", "$POD", 1), step{`Forwarding from 127\.0\.0\.1:10249`, func() {
		out, err := r.Client.Command(r.Context(), "curl", "-sSf", "http://127.0.0.1:10249/status").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "<title>") {
			r.Errorf("the status page by kubectl port-forward: %v\n%s", err, out)
		}
	}})
}

// fix adds a chain that drops forwarded packets, and runs the command from the finding.
func (r *reader) fix(command string) {
	nft(r, r.Node, "add table inet firewall; add chain inet firewall forward { type filter hook forward priority 0; policy drop; }")
	r.ends(0, `(?m)^on node node-1: nft add rule inet firewall forward ct status dnat accept\n`, command)
	r.ends(0, "", command+" | head -n 1 | sed 's/^on node node-1: //' | bash")
	r.ends(0, "health +healthy[,\n]", "kube-nftproxy status") // status exits with 1 after a finding
}

// installBeside gives the cluster the ConfigMap of a kube-proxy, with its own addresses.
func (r *reader) installBeside(command string) {
	r.sh(`kubectl -n kube-system create configmap kube-proxy --from-file=deploy/base/config.conf --from-file=deploy/base/kubeconfig.conf`)
	r.ends(0, `daemonset\.apps/kube-nftproxy-try`, command)
}

// statusBeside: the instance has no finding about the other one, which continues to serve.
func (r *reader) statusBeside(command string) {
	r.ends(0, `(?s)health +healthy[,\n].*only Services with the label service\.kubernetes\.io/service-proxy-name=try\n`, command)
	r.ends(0, `default/two`, "kube-nftproxy services")
	r.ends(2, `default/web is not served by kube-nftproxy: its label service\.kubernetes\.io/service-proxy-name=try assigns it to another proxy`, "kube-nftproxy services default/web")
	if err := reached(r.Context(), r.Pods[1], inet.TCP, addrPort("10.96.0.10"), "pod-0"); err != nil {
		r.Error(err)
	}
}

// removeBeside deletes the instance, whose tables stay.
func (r *reader) removeBeside(command string) {
	r.ends(0, `daemonset\.apps "kube-nftproxy-try" deleted`, command)
	eventually(r, patience, func() error {
		list, err := r.api.Client().CoreV1().Pods("kube-system").List(r.Context(), metav1.ListOptions{LabelSelector: "k8s-app=kube-nftproxy-try"})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("its pod still exists")
		}
		return err
	})
	eventually(r, patience, func() error { return reached(r.Context(), r.Pods[1], inet.TCP, addrPort("10.96.0.10"), "pod-0") })
}

func (r *reader) cleanupBeside(command string) {
	r.ends(0, "table ip kube-nftproxy-try", "nft list tables")
	r.ends(0, "", command)
	r.ends(0, `^table ip6? kube-nftproxy\ntable ip6? kube-nftproxy\n$`, "nft list tables | grep kube-nftproxy")
}

// cleanup deletes the pods, and then their leftovers.
func (r *reader) cleanup(command string) {
	r.sh("kubectl delete -k deploy/base")
	eventually(r, patience, func() error {
		if n := r.pods(); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	r.ends(0, "table ip kube-nftproxy", "nft list tables")
	r.ends(0, "", command)
	r.ends(0, `^$`, "nft list tables | grep kube-nftproxy || true")
}

// serveManifests connects to a Service in the folder.
func (r *reader) serveManifests(command string) {
	r.follow(r.Node, command, step{".", func() {
		eventually(r, patience, func() error { return reached(r.Context(), r.Pods[1], inet.TCP, addrPort("10.96.0.10"), "pod-0") })
	}})
}

func (r *reader) deleteTables(command string) {
	r.ends(0, "table ip6? kube-nftproxy\ntable", "nft list tables")
	r.ends(0, "^$", command)
	if out := nft(r, r.Node, "list", "tables"); slices.Contains(strings.Fields(out), "kube-nftproxy") {
		r.Errorf("tables left: %s", out)
	}
}
