package neighbours

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// Results are the rows of a checkout.
var Results = page.Results[Row]{File: "docs/compatibility.json", Page: "docs/compatibility.md", Part: "neighbours", Tables: table}

// Row is the result of one neighbour.
type Row struct {
	// Name and Version are the name and the version of the neighbour.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Order is the place in the table.
	Order int `json:"order"`
	// Set is the setting that Services need, in Markdown; empty if they work without it. Broken are the checks that fail without the setting.
	Set    string   `json:"set,omitempty"`
	Broken []string `json:"broken,omitempty"`
	// Unset is a reload without the setting, if no check fails.
	Unset *Step `json:"unset,omitempty"`
	// Policy is the tested policy of the neighbour, Limit a policy of the neighbour that does not apply to Services.
	Policy string `json:"policy"`
	Limit  string `json:"limit,omitempty"`
	// Steps are the results of the steps, in both orders of installation.
	Steps []Step `json:"steps"`
	// Kernel is the release of the kernel.
	Kernel string `json:"kernel"`
}

// Step is the traffic during a step.
type Step struct {
	Name string `json:"name"`
	// First is true if kube-nftproxy was installed before the neighbour.
	First bool `json:"first"`
	// Made and Failed count new connections. Flows and Broken count connections that were established before the step.
	Made   int `json:"made"`
	Failed int `json:"failed"`
	Flows  int `json:"flows"`
	Broken int `json:"broken"`
}

// The steps.
const (
	stepInstall = "install"
	stepReload  = "reload"
	stepRestart = "restart of kube-nftproxy"
	stepRemove  = "remove"
)

// table returns the rows as Markdown.
func table(rows []Row) string {
	var b strings.Builder
	b.WriteString("| neighbour | version | result | tested policy |\n|---|---|---|---|\n")
	for _, r := range rows {
		result := "works"
		if r.Set != "" {
			result = "set this: " + r.Set
		}
		policy := r.Policy
		if r.Limit != "" {
			policy += ". **Limit:** " + r.Limit
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Name, r.Version, result, policy)
	}
	b.WriteString("\nThe first columns show the failed ones of all new connections, in both orders of installation. The last column shows the broken ones of all established\nconnections:\n\n" +
		"| neighbour | install | reload | restart of kube-nftproxy | remove | broken established connections |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.Name)
		flows, broken := 0, 0
		for _, name := range []string{stepInstall, stepReload, stepRestart, stepRemove} {
			made, failed := 0, 0
			for _, s := range r.Steps {
				if s.Name == name {
					made, failed, flows, broken = made+s.Made, failed+s.Failed, flows+s.Flows, broken+s.Broken
				}
			}
			cell := "-"
			if made > 0 {
				cell = fmt.Sprintf("%d of %d", failed, made)
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		fmt.Fprintf(&b, " %d of %d |\n", broken, flows)
	}
	b.WriteString("\nWithout the setting, these checks failed:\n\n| neighbour | failed |\n|---|---|\n")
	for _, r := range rows {
		if r.Set == "" {
			continue
		}
		failed := strings.Join(r.Broken, "; ")
		if r.Unset != nil {
			failed = fmt.Sprintf("%d of %d new connections during a reload", r.Unset.Failed, r.Unset.Made)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", r.Name, failed)
	}
	return b.String()
}

// publish writes rows into a checkout, in place of the rows with the same names.
func publish(root string, news []Row) error {
	return Results.Publish(root, func(rows []Row) []Row {
		rows = slices.DeleteFunc(rows, func(r Row) bool { return slices.ContainsFunc(news, func(n Row) bool { return n.Name == r.Name }) })
		rows = append(rows, news...)
		slices.SortStableFunc(rows, func(a, b Row) int { return a.Order - b.Order })
		return rows
	})
}
