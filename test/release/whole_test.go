//go:build release

package release

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// manifests have Services of both families, with affinity, source ranges and a node port.
const manifests = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:96::10"]
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  loadBalancerSourceRanges: [198.51.100.0/24, "2001:db8::/32"]
  ports: [{name: http, protocol: TCP, port: 80, targetPort: 8080, nodePort: 30080}, {name: dns, protocol: UDP, port: 53, targetPort: 5353, nodePort: 30053}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: "2001:db8:1::10"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}, {name: dns, protocol: UDP, port: 5353}]
endpoints: [{addresses: [10.244.0.10], nodeName: node-1}, {addresses: [10.244.1.11], nodeName: node-2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, protocol: TCP, port: 8080}, {name: dns, protocol: UDP, port: 5353}]
endpoints: [{addresses: ["fd00:244::10"], nodeName: node-1}, {addresses: ["fd00:244:1::11"], nodeName: node-2}]
`

// architectures lists those of a release, and their programs under QEMU's user emulation; the program of the machine needs none.
var architectures = map[string]string{"amd64": "", "arm64": "aarch64", "s390x": "s390x", "ppc64le": "ppc64le", "riscv64": "riscv64"}

// TestWhole builds a release twice, in different folders and with different settings of the builder, and uses its files as their users do. With
// RELEASE, it only uses the files.
func TestWhole(t *testing.T) {
	dir, public := given(t)
	if dir == "" {
		var private string
		private, public = keys(t)
		dir = build(t, "umask 022", "KEY="+private)
		other := build(t, "umask 077; export TZ=UTC-7 LC_ALL=C.UTF-8 GOFLAGS=-buildvcs=auto GOAMD64=v2 GOARM64=v8.1", "KEY=")
		mustShell(t, dir, `diff --recursive --exclude=SHA256SUMS.sig --exclude=provenance.intoto.jsonl . "$OTHER"`, "OTHER="+other)
	}
	version := versionOf(t, dir)
	t.Run("cosign", func(t *testing.T) { checkCosign(t, dir, public) })
	t.Run("signed image", func(t *testing.T) { checkSignedImage(t, dir) })
	for _, helm := range []string{"helm-v3", "helm-v4"} {
		t.Run(helm, func(t *testing.T) { checkHelm(t, dir, helm, version[1:]) })
	}
	t.Run("packages", func(t *testing.T) { checkPackages(t, dir, version) })
	for arch := range architectures {
		t.Run(arch, func(t *testing.T) { checkProgram(t, dir, arch, version) })
	}
}

// built returns a program that hack/kubernetes.sh has built.
func built(t *testing.T, name string) string {
	t.Helper()
	mustShell(t, repository, "hack/kubernetes.sh "+name)
	path, err := filepath.Abs(filepath.Join(repository, "bin/kubernetes", name))
	lab.Must(t, err)
	return path
}

// checkCosign verifies the signatures with the commands in docs/releasing.md, and wrong ones.
func checkCosign(t *testing.T, dir, public string) {
	env := []string{"COSIGN=" + built(t, "cosign"), "KEY=" + public, "HOME=" + t.TempDir()}
	for _, c := range []struct{ command, signed, other string }{
		{`verify-blob --key "$KEY" --signature SHA256SUMS.sig --insecure-ignore-tlog`, "SHA256SUMS", "nftproxy.yaml"},
		{`verify-blob-attestation --key "$KEY" --signature provenance.intoto.jsonl --type slsaprovenance1 ` +
			`--insecure-ignore-tlog`, "kube-nftproxy-linux-amd64", "SHA256SUMS"},
	} {
		out, err := shell(t.Context(), dir, `"$COSIGN" `+c.command+" "+c.signed, env...)
		if err != nil || !strings.Contains(out, "Verified OK") {
			t.Errorf("cosign: %v\n%s", err, out)
		}
		if out, err := shell(t.Context(), dir, `"$COSIGN" `+c.command+" "+c.other, env...); err == nil {
			t.Errorf("cosign accepts the signature of another file:\n%s", out)
		}
	}
}

// checkSignedImage signs the image of a release in a registry by its digest, and verifies it, as docs/releasing.md does.
func checkSignedImage(t *testing.T, dir string) {
	env := []string{"COSIGN=" + built(t, "cosign"), "HOME=" + t.TempDir(), "REGISTRY=" + serveRegistry(t), "COSIGN_PASSWORD=",
		"DIR=" + dir}
	out := mustShell(t, t.TempDir(), `
skopeo copy --quiet --all --preserve-digests --dest-tls-verify=false "oci-archive:$DIR/kube-nftproxy-image.tar" "docker://$REGISTRY/kube-nftproxy:v1"
digest=$(skopeo inspect --raw --tls-verify=false "docker://$REGISTRY/kube-nftproxy:v1" | sha256sum | cut -d ' ' -f 1)
image=$REGISTRY/kube-nftproxy@sha256:$digest
"$COSIGN" generate-key-pair
verify() { "$COSIGN" verify --key cosign.pub --insecure-ignore-tlog --allow-http-registry "$image"; }
! verify || exit 1
"$COSIGN" sign --key cosign.key --use-signing-config=false --tlog-upload=false --allow-http-registry --yes "$image"
verify`, env...)
	if !strings.Contains(out, "signatures were verified against the specified public key") {
		t.Errorf("cosign verify:\n%s", out)
	}
}

// TestFIPS builds the program with Go's cryptographic module for FIPS 140-3, as docs/releasing.md does, and runs it. At
// its start, the module tests itself, and the program fails if a test fails.
func TestFIPS(t *testing.T) {
	scenario := filepath.Join(t.TempDir(), "web.yaml")
	lab.Must(t, os.WriteFile(scenario, []byte(manifests), 0o644))
	out := mustShell(t, repository, `
GOFIPS140=v1.0.0 BINARY=$TO/kube-nftproxy hack/build.sh
go version -m "$TO/kube-nftproxy" | grep -w GOFIPS140
"$TO/kube-nftproxy" version --client
GODEBUG=fips140=only "$TO/kube-nftproxy" render --hostname-override=node-1 -f "$SCENARIO" | grep 'map services'`,
		"TO="+t.TempDir(), "SCENARIO="+scenario)
	for _, want := range []string{"GOFIPS140=v1.0.0", "program file", "map services"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// checkHelm reads the chart's archive, and pulls the chart from a registry into which its artifact was copied. The registry also gets the archive, by
// "helm push": both are the same chart.
func checkHelm(t *testing.T, dir, helm, version string) {
	env := []string{"HELM=" + built(t, helm), "HOME=" + t.TempDir(), "VERSION=" + version, "TO=" + t.TempDir(), "REGISTRY=" + serveRegistry(t)}
	mustShell(t, dir, `skopeo copy --quiet --dest-tls-verify=false oci-archive:kube-nftproxy-chart-oci.tar "docker://$REGISTRY/artifact/kube-nftproxy:$VERSION"
"$HELM" push --plain-http "kube-nftproxy-$VERSION.tgz" "oci://$REGISTRY/pushed"
for folder in artifact pushed; do
  "$HELM" pull --plain-http "oci://$REGISTRY/$folder/kube-nftproxy" --version "$VERSION" --destination "$TO"
  cmp "$TO/kube-nftproxy-$VERSION.tgz" "kube-nftproxy-$VERSION.tgz"
  rm "$TO"/*
done
"$HELM" lint "kube-nftproxy-$VERSION.tgz" --set config.clusterCIDR=10.244.0.0/16,apiServer.host=192.0.2.1`, env...)
	out := mustShell(t, dir, `"$HELM" show chart --plain-http "oci://$REGISTRY/artifact/kube-nftproxy" --version "$VERSION"`, env...)
	if !strings.Contains(out, "version: "+version) {
		t.Errorf("helm show chart:\n%s", out)
	}
}

// serveRegistry runs a registry on a loopback address until the test is done, and returns its address.
func serveRegistry(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built(t, "registry"), "-port=0")
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	lab.Must(t, err)
	lines := bufio.NewReader(log)
	line, err := lines.ReadString('\n')
	_, port, found := strings.Cut(strings.TrimSpace(line), "serving on port ")
	if err != nil || !found {
		t.Fatalf("the registry does not start: %v, %q", err, line)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, lines) }) // until it is killed
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		wg.Wait()
		_ = cmd.Wait()
	})
	return "127.0.0.1:" + port
}

// checkPackages installs the packages of this machine's architecture into empty folders, runs the program in them, and removes them again.
func checkPackages(t *testing.T, dir, version string) {
	for name, script := range map[string]string{
		"deb": `mkdir -p "$ROOT/var/lib/dpkg"; touch "$ROOT/var/lib/dpkg/status"
dpkg --root="$ROOT" --log=/dev/null --install kube-nftproxy-linux-amd64.deb
remove() { dpkg --root="$ROOT" --log=/dev/null --purge kube-nftproxy; }`,
		"rpm": `rpm --root="$ROOT" --dbpath=/var/lib/rpm --nosignature --install kube-nftproxy-linux-amd64.rpm
remove() { rpm --root="$ROOT" --dbpath=/var/lib/rpm --erase kube-nftproxy; }`,
	} {
		out := mustShell(t, dir, script+`
"$ROOT/usr/bin/kube-nftproxy" --version
man --local-file "$ROOT/usr/share/man/man8/kube-nftproxy-trace.8.gz" | cat
bash -n "$ROOT/usr/share/bash-completion/completions/kube-nftproxy"
remove
echo "left: $(find "$ROOT" -path "$ROOT/var" -prune -o -name '*kube-nftproxy*' -print)"`, "ROOT="+t.TempDir(), "MANWIDTH=200")
		for _, want := range []string{"kube-nftproxy " + version + "\n", "kube-nftproxy-trace - "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
		if !strings.HasSuffix(out, "\nleft:") {
			t.Errorf("%s: files are left after the removal:\n%s", name, out)
		}
	}
}

// checkProgram runs the program of an architecture. The tables that it renders are equal to those of the program for amd64.
func checkProgram(t *testing.T, dir, arch, version string) {
	scenario := filepath.Join(t.TempDir(), "web.yaml")
	lab.Must(t, os.WriteFile(scenario, []byte(manifests), 0o644))
	run := func(arch, args string) string {
		program := "./kube-nftproxy-linux-" + arch
		if qemu := architectures[arch]; qemu != "" {
			program = "qemu-" + qemu + " " + program
		}
		return mustShell(t, dir, "install -m 755 kube-nftproxy-linux-"+arch+` "$TO/"; cd "$TO"; exec `+program+" "+args, "TO="+t.TempDir())
	}
	if got := run(arch, "--version"); got != "kube-nftproxy "+version {
		t.Errorf("version %q", got)
	}
	for _, args := range []string{"--help", "help trace", "render --hostname-override=node-1 -f " + scenario} {
		got := run(arch, args)
		lab.Same(t, run("amd64", args), got, "%s (-amd64 +%s)", args, arch)
	}
}
