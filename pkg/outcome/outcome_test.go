package outcome

import (
	"regexp"
	"testing"
)

// TestRows: the names of each outcome are well-formed and unique, and each row has the texts that its readers need.
func TestRows(t *testing.T) {
	camel, snake := regexp.MustCompile(`^([A-Z][a-z]+)+$`), regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	names := map[string]bool{"": true}
	for code, r := range Rows {
		if code == int(None) {
			if r != (Row{}) {
				t.Errorf("the row of None is %+v", r)
			}
			continue
		}
		check := func(ok bool, want string) {
			if !ok {
				t.Errorf("row %d (%s, %s) %s", code, r.Reason, r.Label, want)
			}
		}
		check(r.Reason == "" || camel.MatchString(r.Reason) && !names[r.Reason], "needs another Reason")
		check(r.Label == "" || snake.MatchString(r.Label) && !names[r.Label], "needs another Label")
		names[r.Reason], names[r.Label] = true, true
		check((r.Reason == "") == (r.Does == ""), "has only one of Reason and Does")
		check(r.Reason != "" || r.Fix == "", "has a Fix without Reason")
		check((r.Label != "" || code == int(Forwarded)) == (r.Counted != ""), "has only one of Label and Counted")
		check((r.Label != "") == (r.Refuses || r.Drops), "has only one of Label, and Refuses or Drops")
		check(r.Label != "" || r.Help == "" && r.Action == "" && !r.OfPort, "has a property of a counter without Label")
		check(r.Reason != "" || r.Label != "" || code == int(Forwarded), "has no name")
		check(Of(r.Reason) == Code(code) || r.Reason == "", "is not the outcome of its Reason")
	}
	if got := Of("a reason of a later version"); got != None {
		t.Errorf("the outcome of an unknown reason is %d", got)
	}
}
