package console

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Unready returns the reasons why the program is not ready, one line each: the findings of status that concern the
// first sync, or overdue syncs. It waits for the loop as status does, but does not query the API server, because many
// probes on many nodes may call it at once.
func (c *Console) Unready(ctx context.Context) (lines []string) {
	s := &view.Status{Time: time.Now(), API: view.API{Source: "manifests in " + c.Manifests, Answers: true}}
	if c.API != nil {
		s.API = c.API.recorded()
		s.API.Answers, s.API.Error, s.API.Remedy = answersOf(s.API.Failures, s.Time)
	}
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	s.Loop, _ = c.loopStatus(ctx) // without an answer, judge finds LoopBusy
	list := c.judge(s)
	if s.Loop != nil && s.Loop.Waits != "" {
		list = append(list, c.unread(s, func() (fix, affects string) { return "", "" })...)
	}
	for _, f := range list {
		if f.Severity == view.Wrong || f.Reason == view.StandingBy {
			lines = append(lines, view.Printable(fmt.Sprintf("%s: %s: %s", f.Reason, f.Object, f.What)))
		}
	}
	return lines
}

// answersOf derives from the recent failures whether the API server answers. If it does not, answersOf returns the
// error and its remedy.
func answersOf(list []view.WatchFailure, now time.Time) (answers bool, failed, remedy string) {
	for _, f := range list {
		if f.Unanswered && now.Sub(f.Last) <= lately {
			return false, f.Error, f.Remedy
		}
	}
	return true, "", ""
}
