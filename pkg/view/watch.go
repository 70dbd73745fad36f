package view

import (
	"fmt"
	"strings"
	"time"
)

// Commit is the result of one sync.
type Commit struct {
	Time time.Time `json:"time"`
	// Kind is partial or full. Why is the reason if it is full.
	Kind string `json:"kind,omitempty"`
	Why  string `json:"message,omitempty"`
	// Failed is the error if the sync failed.
	Failed       string `json:"failed,omitempty"`
	Elements     int    `json:"elements"`
	PlanMicros   int64  `json:"planMicroseconds"`
	CommitMicros int64  `json:"commitMicroseconds"`
	// Services are the first changed Services. More is the number of the other changed Services.
	Services []Change `json:"services,omitempty"`
	More     int      `json:"more,omitempty"`
	// Lost is the number of skipped commits before this one, because the reader was too slow.
	Lost uint64 `json:"lost,omitempty"`
}

// Change is the change of one Service.
type Change struct {
	Service string `json:"service"`
	// What is new, gone or changed.
	What             string   `json:"what"`
	Added            []string `json:"endpointsAdded,omitempty"`
	Removed          []string `json:"endpointsRemoved,omitempty"`
	FrontendsAdded   []string `json:"frontendsAdded,omitempty"`
	FrontendsRemoved []string `json:"frontendsRemoved,omitempty"`
}

// Text writes a commit as lines, one for each Service.
func (c *Commit) Text(p *Printer) {
	at := c.Time.Local().Format("15:04:05.000000")
	if c.Lost > 0 {
		p.Printf("%s\n", p.Paint(Warn, fmt.Sprintf("%s  (%d commits skipped: the terminal is too slow)", at, c.Lost)))
	}
	cost := fmt.Sprintf("%s, plan %dµs, kernel %dµs", Count(c.Elements, "element"), c.PlanMicros, c.CommitMicros)
	switch {
	case c.Failed != "":
		p.Printf("%s  %s %s\n", at, p.Paint(Bad, "FAILED"), c.Failed)
		return
	case c.Why != "":
		p.Printf("%s  %s: %s; %s\n", at, p.Paint(Warn, "full rewrite"), c.Why, cost)
	case len(c.Services) == 0:
		p.Printf("%s  no Service: unused chains deleted; %s\n", at, cost)
	}
	for i := range c.Services {
		p.Printf("%s  %s  %s\n", at, c.Services[i].text(p), cost)
		cost = "(same batch)"
	}
	if c.More > 0 {
		p.Printf("%s  ... and %d more in the same batch\n", at, c.More)
	}
}

func (c *Change) text(p *Printer) Painted {
	var parts []string
	add := func(style Style, text string) { parts = append(parts, string(p.Paint(style, text))) }
	add(Bold, c.Service)
	add(Plain, c.What)
	list := func(sign string, style Style, of []string) {
		for i, s := range of {
			if i == MostNamed && !p.Wide {
				add(Plain, fmt.Sprintf("%s%d more", sign, len(of)-MostNamed))
				return
			}
			add(style, sign+s)
		}
	}
	list("+", Good, c.Added)
	list("-", Bad, c.Removed)
	if len(c.FrontendsAdded)+len(c.FrontendsRemoved) > 0 {
		add(Plain, "frontends")
		list("+", Good, c.FrontendsAdded)
		list("-", Bad, c.FrontendsRemoved)
	}
	return Painted(strings.Join(parts, " "))
}
