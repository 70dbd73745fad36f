package scenario

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// held lists the service ports with demand, in both families.
func held(t *testing.T, l *lab.Lab) (list string) {
	t.Helper()
	for _, f := range inet.Families {
		text := l.Node.Run(t, "nft", "list", "set", f.Keyword(), "kube-nftproxy", plan.HeldSet)
		if _, elements, found := strings.Cut(text, "elements = {"); found {
			list += elements
		}
	}
	return list
}

// sendChunk sends an SCTP packet with one chunk from a host.
func sendChunk(t *testing.T, from *lab.Host, to netip.AddrPort, chunk uint8) {
	t.Helper()
	b := binary.BigEndian.AppendUint16(nil, 40_000)
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // the verification tag and the checksum
	b = append(b, chunk, 0, 0, 20)
	b = append(b, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1) // of an INIT; without a meaning in other chunks
	if chunk != sctpInit {
		b[7] = 1 // only an INIT has the tag 0
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	lab.Must(t, from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
	}))
}

// The SCTP chunks of the test, from RFC 9260.
const sctpInit, sctpHeartbeat = 1, 4

// An SCTP client that lost its endpoint sends heartbeats as long as it waits. They are no demand, unlike the INIT of a new association.
func TestHeartbeatsAreNoDemand(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 1})
	p := pipelineForTest(t, l)
	lab.Must(t, os.WriteFile(filepath.Join(p.folder, "web.yaml"), []byte(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {kube-nftproxy.io/scale-to-zero: "true"}}
spec:
  clusterIPs: [10.96.0.10]
  ports: [{port: 36412, protocol: SCTP}]
`), 0o600))
	lab.Must(t, p.load())
	to := netip.MustParseAddrPort("10.96.0.10:36412")
	for chunk, want := range map[uint8]bool{sctpHeartbeat: false, sctpInit: true} {
		l.Node.Run(t, "nft", "flush", "set", "ip", "kube-nftproxy", plan.HeldSet)
		sendChunk(t, l.Pods[0], to, chunk)
		if a := l.Pods[0].Probe(t.Context(), inet.TCP, netip.AddrPortFrom(to.Addr(), 1), lab.Options{}); a.Outcome != lab.Refused {
			t.Fatalf("an unused port: %v", a) // the answer follows the chunk
		}
		if got := held(t, l); (got != "") != want {
			t.Errorf("after a chunk of type %d, the service ports with demand are %q", chunk, got)
		}
	}
}
