package compare

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

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
	for _, name := range slices.Sorted(maps.Keys(t.Chains)) {
		ch := t.Chains[name]
		fmt.Fprintf(b, "\tchain %s {\n", name)
		if hook := ch.HookText(); hook != "" {
			fmt.Fprintf(b, "\t\t%s\n", hook)
		}
		for i := range ch.Rules {
			fmt.Fprintf(b, "\t\t%s\n", t.RuleText(&ch.Rules[i]))
		}
		fmt.Fprintf(b, "\t}\n")
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
