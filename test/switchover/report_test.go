//go:build twin

package switchover

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// row is the result of one switch.
type row struct {
	*figures
	mode mode
	// title describes the switch.
	title string
	// gap is true if neither program serves for a while, so that new connections may fail.
	gap bool
	// repinned counts the clients with session affinity, of six, that have another endpoint after the switch.
	repinned int
	// start is the time from the start of the program to its first sync, clean the time until the rules of the other program are
	// removed, change the time until a change in the API takes effect.
	start, clean, change time.Duration
}

// failures returns the number of failed attempts.
func (r *row) failures() int { return len(r.tcp.failures) + len(r.udp.failures) }

// describe lists the failures by protocol, kind and destination, with their time span.
func (r *row) describe() string {
	var out []string
	for name, tally := range map[string]*tally{"TCP": r.tcp, "UDP": r.udp} {
		for kind, count := range tally.kinds() {
			out = append(out, fmt.Sprintf("%s %s: %d", name, kind, count))
		}
		for to, count := range tally.targets() {
			out = append(out, fmt.Sprintf("%s to %s: %d", name, to, count))
		}
		if first, last := tally.span(); len(tally.failures) > 0 {
			out = append(out, fmt.Sprintf("%s from %s to %s", name, first.Format("05.000"), last.Format("05.000")))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// targets counts the failures by destination.
func (t *tally) targets() map[string]int {
	out := map[string]int{}
	for _, f := range t.failures {
		out[f.to.String()]++
	}
	return out
}

// span returns the times of the first and the last failure.
func (t *tally) span() (first, last time.Time) {
	for i, f := range t.failures {
		if i == 0 || f.at.Before(first) {
			first = f.at
		}
		if f.at.After(last) {
			last = f.at
		}
	}
	return first, last
}

// outage returns the time from the first to the last failure of either protocol.
func (r *row) outage() time.Duration {
	all := &tally{failures: slices.Concat(r.tcp.failures, r.udp.failures)}
	first, last := all.span()
	return last.Sub(first)
}

// String returns all results of the switch.
func (r *row) String() string {
	return fmt.Sprintf("%d TCP connections (failed: %v, answered by %s), %d UDP requests (failed: %v), %d flows (%d old): %d messages, lost %d, "+
		"moved %d, retransmitted %d, broken %d; first sync after %v, old rules removed after %v, change in effect after %v, %d of 6 clients have another endpoint",
		r.tcp.made, r.tcp.kinds(), counts(r.tcp.servers), r.udp.made, r.udp.kinds(), r.flows, r.old, r.sent, r.lost, r.moved, r.retransmitted,
		len(r.broken), round(r.start), round(r.clean), round(r.change), r.repinned)
}

func counts(m map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(out, ", ")
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// report collects the rows.
type report struct{ rows []row }

func (r *report) add(one row) { r.rows = append(r.rows, one) }

// table returns the report in Markdown.
func (r *report) table() string {
	s := fmt.Sprintf("kube-proxy v1.37.2, %d Services, IPv4 and IPv6. Each row had 1,000 new TCP connections and 200 new UDP requests a second, "+
		"and %d flows that began before the switch. *Failed for* is the time from the first failure to the last. *Removed after* is the time until "+
		"no rule of the previous program is left: from the first sync of the new program, the end of `--cleanup`, or the exit of kube-proxy. If the cell is "+
		"empty, the rules of kube-nftproxy stay. *Change after* is the time until new connections follow a new Service and a replaced endpoint.\n\n", fillers+3, r.flows()) +
		"| mode of kube-proxy | switch | connections | failed | UDP requests | failed | failed for | flows broken | datagrams lost | removed after | change after |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|\n"
	for _, row := range r.rows {
		outage, change, clean := "", round(row.change).String(), ""
		if row.failures() > 0 {
			outage = round(row.outage()).String()
		}
		if row.clean > 0 {
			clean = round(row.clean).String()
		}
		s += fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %s | %d | %d | %s | %s |\n", row.mode.name, row.title, row.tcp.made, len(row.tcp.failures),
			row.udp.made, len(row.udp.failures), outage, len(row.broken), row.lost, clean, change)
	}
	return s
}

// flows returns the number of flows, which is the same in every row.
func (r *report) flows() int {
	if len(r.rows) == 0 {
		return 0
	}
	return r.rows[0].figures.flows
}

// publish writes the table between its two markers in docs/reliability.md.
func (r *report) publish(folder string) error {
	return page.Write(filepath.Join(folder, "docs/reliability.md"), "switchover", r.table())
}
