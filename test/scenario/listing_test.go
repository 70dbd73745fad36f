package scenario

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// program is an nft binary.
type program struct {
	name string
	argv []string
}

// nftOfMachine is the nft of this machine.
var nftOfMachine = program{"nft", []string{"nft"}}

// programs returns the nft of this machine, and those in the directories of the environment variable NFT_CHROOTS that have other versions.
func programs() []program {
	list := []program{nftOfMachine}
	versions := []string{list[0].version()}
	for _, dir := range filepath.SplitList(os.Getenv("NFT_CHROOTS")) {
		p := program{filepath.Base(dir), []string{"chroot", dir, "/usr/sbin/nft"}}
		if v := p.version(); v == "" || !slices.Contains(versions, v) {
			list, versions = append(list, p), append(versions, v)
		}
	}
	return list
}

// version returns the output of nft --version, or "".
func (p program) version() string {
	out, _ := exec.Command(p.argv[0], append(p.argv[1:], "--version")...).Output() //nolint:errcheck // without a version, the test runs the program
	return string(out)
}

func (p program) run(h *lab.Host, input string, args ...string) (string, error) {
	argv := append(append([]string{}, p.argv...), args...)
	cmd := h.Command(context.Background(), argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

var (
	// filled matches the elements that packets and time change, for example clients in the affinity map, and cluster IPs with requests to
	// unused ports.
	filled = regexp.MustCompile(`((?:map affinity|set unused-ports|set held|set holding|set full|set tried) \{\n[^}]*?)\t\telements = \{[^}]*\}\n`)
	// count matches the count that recent versions of nft append to the size of a set, in spite of -s.
	count = regexp.MustCompile(`\t# count [0-9]+`)
	// elementList matches the list of a set's elements, which may have several lines.
	elementList = regexp.MustCompile(`(?s)elements = \{ (.*?) \}\n`)
	comma       = regexp.MustCompile(`,\s+`)
)

// list returns "nft -s list ruleset" without elements that packets added.
func (p program) list(h *lab.Host) (string, error) {
	text, err := p.run(h, "", "-s", "list", "ruleset")
	text = filled.ReplaceAllString(text, "$1")
	return count.ReplaceAllString(text, ""), err
}

// canonical sorts the sets, chains and elements of each table by name. nft lists chains in the order of creation, and ranges in
// the kernel's order. While the kernel moves a set to a larger hash table, an element may be listed twice.
func canonical(listing string) []string {
	listing = elementList.ReplaceAllStringFunc(listing, func(list string) string {
		elements := comma.Split(elementList.FindStringSubmatch(list)[1], -1)
		slices.Sort(elements)
		return "elements = {\n" + strings.Join(slices.Compact(elements), ",\n") + " }\n"
	})
	var blocks []string
	table, block := "", ""
	for _, line := range strings.SplitAfter(listing, "\n") {
		if strings.HasPrefix(line, "table ") {
			table = line
		}
		block += line
		if line == "\t}\n" || strings.HasPrefix(line, "\tcomment ") { // the end of an object, or the table's comment
			blocks = append(blocks, strings.TrimSuffix(table, "\n")+" "+strings.TrimSpace(strings.TrimPrefix(block, table)))
			block = ""
		}
	}
	slices.Sort(blocks)
	return strings.Split(strings.Join(append(blocks, strings.TrimSpace(block)), "\n"), "\n")
}

// withoutKeys is a listing without the digests of the tables and their keys: each process has its own.
func withoutKeys(listing string) string { return keys.ReplaceAllString(listing, "$1") }

var keys = regexp.MustCompile(` key [0-9a-f]{32}( next [0-9a-f]+) digest [0-9a-f]{16}`)

// reload lists a namespace's tables, loads the text into another namespace, and lists it there.
func (p program) reload(from, to *lab.Host) (text string, err error) {
	text, err = p.list(from)
	if err != nil {
		return "", err
	}
	if _, err := p.run(to, "flush ruleset\n"+text, "-f", "-"); err != nil {
		return text, err
	}
	again, err := p.list(to)
	if err != nil {
		return text, err
	}
	if diff := cmp.Diff(canonical(text), canonical(again)); diff != "" {
		return text, fmt.Errorf("%s lists what it has loaded in another way (-listed +loaded and listed):\n%s", p.name, diff)
	}
	return text, cleanUp(to)
}
