package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// machine creates a directory with the given files.
func machine(t *testing.T, content map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range content {
		path := filepath.Join(root, file)
		lab.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

func TestConntrackIsSet(t *testing.T) {
	most := strconv.Itoa(cpus() * 1000)
	fresh := func() map[string]string {
		return map[string]string{conntrackMax: "5\n", hashSize: "7\n", conntrackTCP + "timeout_established": "432000\n",
			conntrackTCP + "timeout_close_wait": "60\n", conntrackTCP + "be_liberal": "0\n", conntrackUDP: "30\n", conntrackUDP + "_stream": "120\n"}
	}
	all := Conntrack{MaxPerCore: 1000, Min: 10, TCPBeLiberal: true, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour,
		UDP: time.Minute, UDPStream: 2 * time.Minute}
	for _, tc := range []struct {
		name string
		set  Conntrack
		want map[string]string // written values
	}{
		{name: "nothing wanted"},
		{name: "everything", set: all, want: map[string]string{
			conntrackMax: most, hashSize: strconv.Itoa(cpus() * 250), conntrackTCP + "timeout_established": "86400",
			conntrackTCP + "timeout_close_wait": "3600", conntrackTCP + "be_liberal": "1", conntrackUDP: "60"}},
		{name: "at least", set: Conntrack{MaxPerCore: 1, Min: 400000}, want: map[string]string{conntrackMax: "400000", hashSize: "100000"}},
		{name: "at most", set: Conntrack{MaxPerCore: 1 << 30, Min: 1 << 30}, want: map[string]string{conntrackMax: "1048576", hashSize: "262144"}},
		{name: "no least without a number per CPU", set: Conntrack{Min: 400000}},
		{name: "a large hash table stays", set: Conntrack{MaxPerCore: 1, Min: 8}, want: map[string]string{conntrackMax: "8"}},
		{name: "as it is", set: Conntrack{MaxPerCore: 1, Min: 5, UDP: 30 * time.Second}},
		{name: "a greater limit stays", set: Conntrack{MaxPerCore: 1, Min: 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := machine(t, fresh())
			set, err := tc.set.Set(root)
			lab.Must(t, err)
			want := fresh()
			for file, text := range tc.want {
				want[file] = text
			}
			got := map[string]string{}
			for file := range want {
				text, err := os.ReadFile(filepath.Join(root, file))
				lab.Must(t, err)
				got[file] = string(text)
			}
			lab.Same(t, want, got, "files")
			if len(set) != len(tc.want) {
				t.Errorf("returned as set: %v, want those of %v", set, tc.want)
			}
		})
	}
}

// A value that cannot be written is reported, and the others are written.
func TestConntrackWithoutFiles(t *testing.T) {
	root := machine(t, map[string]string{hashSize: "1\n", conntrackUDP: "30\n"})
	set, err := Conntrack{MaxPerCore: 1, Min: 100, UDP: time.Minute}.Set(root)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "nf_conntrack_max") {
		t.Errorf("error %v, want one about nf_conntrack_max", err)
	}
	lab.Same(t, []Setting{{conntrackUDP, 60}}, set, "set")
}

func TestOOMScore(t *testing.T) {
	root := machine(t, map[string]string{"proc/self/oom_score_adj": "0\n"})
	lab.Must(t, SetOOMScore(root, -999))
	if got, err := os.ReadFile(filepath.Join(root, "proc/self/oom_score_adj")); err != nil || string(got) != "-999" {
		t.Errorf("oom_score_adj is %q, %v", got, err)
	}
}
