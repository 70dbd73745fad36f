package compare

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Listing reads the tables with a name, and returns a text similar to the output of nft list. It does not run nft. If
// some objects are unreadable, Listing returns the rest and an error. It omits the secret key in the element of
// [plan.StateSet].
func Listing(table string) ([]byte, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var b bytes.Buffer
	var errs []error
	for _, f := range inet.Families {
		errs = append(errs, list(conn, &b, f, table))
	}
	return b.Bytes(), errors.Join(errs...)
}

func list(conn *nft.Conn, b *bytes.Buffer, family inet.Family, table string) error {
	t, err := read.Load(conn, family, table)
	if err != nil || !t.Exists {
		return err
	}
	var errs []error
	fmt.Fprintf(b, "table %s %s {\n", family.Keyword(), table)
	for _, name := range slices.Sorted(maps.Keys(t.Sets)) {
		if !t.Infos[name].Anonymous { // otherwise the text of its rule has the elements
			errs = append(errs, listSet(conn, b, t.Sets[name]))
		}
	}
	for _, o := range t.Objects {
		fmt.Fprintf(b, "\tobject %s { %s }\n", o.Name, strings.Join(o.Lines(family), "; "))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Chains)) {
		ch := t.Chains[name]
		var rules []string
		for i := range ch.Rules {
			rules = append(rules, t.RuleText(&ch.Rules[i]))
		}
		listChain(b, &ch.ChainInfo, rules)
	}
	fmt.Fprintf(b, "}\n")
	return errors.Join(errs...)
}

func listSet(conn *nft.Conn, b *bytes.Buffer, s *nft.Set) error {
	elements, err := conn.Elements(s)
	if s.Name == plan.StateSet {
		for i := range elements {
			elements[i].Comment = "(not shown: it holds a secret key)"
		}
	}
	lines := read.List(s, elements)
	fmt.Fprintf(b, "\t%s { # %d elements\n", s.Head(), len(elements))
	if err != nil {
		fmt.Fprintf(b, "\t\t# %v\n", err)
	}
	for _, line := range lines {
		fmt.Fprintf(b, "\t\t%s\n", line)
	}
	fmt.Fprintf(b, "\t}\n")
	return err
}

// mostUses is the limit of the rules that [Others] lists of a table. The kernel counts jumps to chains with them.
const mostUses = 20_000

// Others returns the chains of all other tables that may affect packets of Services, with their rules as text. It omits
// tables with many rules, such as those of a kube-proxy in a large cluster.
func Others(own string) ([]byte, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // read only
	var b bytes.Buffer
	var errs []error
	for _, family := range read.Families {
		chains, err := read.Chains(conn, family)
		errs = append(errs, err)
		tables, uses := map[string][]nft.ChainInfo{}, map[string]uint32{}
		for _, ch := range chains {
			tables[ch.Table] = append(tables[ch.Table], ch)
			uses[ch.Table] += ch.Uses
		}
		delete(tables, own)
		for _, table := range slices.Sorted(maps.Keys(tables)) {
			fmt.Fprintf(&b, "table %s %s { # %d chains\n", family, table, len(tables[table]))
			if uses[table] > mostUses {
				fmt.Fprintf(&b, "\t# not shown: more than %d rules\n}\n", mostUses)
				continue
			}
			rules, err := read.Rules(conn, family, table)
			errs = append(errs, err)
			texts := map[string][]string{}
			for i := range rules {
				texts[rules[i].Chain] = append(texts[rules[i].Chain], rules[i].Text())
			}
			for _, ch := range tables[table] {
				listChain(&b, &ch, texts[ch.Name])
			}
			fmt.Fprintf(&b, "}\n")
		}
	}
	return b.Bytes(), errors.Join(errs...)
}

func listChain(b *bytes.Buffer, ch *nft.ChainInfo, rules []string) {
	fmt.Fprintf(b, "\tchain %s {\n", ch.Name)
	if hook := ch.HookText(); hook != "" {
		fmt.Fprintf(b, "\t\t%s\n", hook)
	}
	for _, rule := range rules {
		fmt.Fprintf(b, "\t\t%s\n", rule)
	}
	fmt.Fprintf(b, "\t}\n")
}
