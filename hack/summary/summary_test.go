package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// line returns one event as go test writes it.
func line(action, pkg, test string) string {
	s := `{"Action":"` + action + `","Package":"` + pkg + `"`
	if test != "" {
		s += `,"Test":"` + test + `"`
	}
	return s + "}\n"
}

func TestOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		input string
		want  outcomes
	}{
		{name: "nothing", want: outcomes{}},
		{
			name:  "each way to end",
			input: line("pass", "p", "A") + line("fail", "p", "B") + line("skip", "p", "C") + line("fail", "p", ""),
			want:  outcomes{{"p", "A"}: "pass", {"p", "B"}: "fail", {"p", "C"}: "skip"},
		},
		{
			name:  "subtests stand for their test",
			input: line("pass", "p", "A/x") + line("skip", "p", "A/y") + line("pass", "p", "A") + line("pass", "p", ""),
			want:  outcomes{{"p", "A/x"}: "pass", {"p", "A/y"}: "skip"},
		},
		{
			name:  "a test fails by its subtest",
			input: line("pass", "p", "A/x") + line("fail", "p", "A/y") + line("fail", "p", "A"),
			want:  outcomes{{"p", "A/x"}: "pass", {"p", "A/y"}: "fail"},
		},
		{
			name:  "a test fails after its subtests",
			input: line("pass", "p", "A/x") + line("fail", "p", "A"),
			want:  outcomes{{"p", "A/x"}: "pass", {"p", "A"}: "fail"},
		},
		{
			name:  "a test that never ended",
			input: line("run", "p", "A") + line("fail", "p", ""),
			want:  outcomes{{"p", "A"}: "fail"},
		},
		{
			name:  "a package that failed by itself",
			input: line("pass", "p", "A") + line("fail", "p", ""),
			want:  outcomes{{"p", "A"}: "pass", {"p", ""}: "fail"},
		},
		{
			name:  "a package that was not built",
			input: `{"ImportPath":"p [p.test]","Action":"build-fail"}` + "\n" + line("fail", "p", ""),
			want:  outcomes{{"p", ""}: "fail"},
		},
		{name: "a package without tests", input: line("skip", "p", ""), want: outcomes{}},
		{name: "not an event", input: "WARNING: something\n", want: outcomes{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readOutcomes(mustWrite(t, tc.input))
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("err=%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestSumUpCountsEachTestOnce(t *testing.T) {
	unit := mustWrite(t, line("pass", "p", "A")+line("skip", "p", "B")+line("skip", "p", "C"))
	netns := mustWrite(t, line("pass", "p", "A")+line("pass", "p", "B/x")+line("pass", "p", "B")+line("skip", "p", "C"))
	for _, tc := range []struct {
		name string
		args []string
		ok   bool
		want string
	}{
		{
			name: "all is well",
			args: []string{"unit:61:ok:" + unit, "netns:9:ok:" + netns},
			ok:   true,
			want: `
lane     result    seconds
unit     ok             61  1 passed, 0 failed, 2 skipped
netns    ok              9  2 passed, 0 failed, 1 skipped
skipped: 1 of p: C

each test once:
2 passed, 0 failed, 1 skipped
`,
		},
		{
			name: "a lane fails without a test of it",
			args: []string{"unit:1:FAILED:" + unit, "netns:-:not run:" + filepath.Join(t.TempDir(), "missing")},
			want: `
lane     result    seconds
unit     FAILED          1  1 passed, 1 failed, 2 skipped
netns    not run         -  0 passed, 0 failed, 0 skipped
failed: unit (the lane itself)
skipped: 2 of p: B C

each test once:
1 passed, 1 failed, 2 skipped
`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got strings.Builder
			ok, err := sumUp(&got, tc.args)
			if diff := cmp.Diff(tc.want, got.String()); err != nil || ok != tc.ok || diff != "" {
				t.Errorf("ok=%v err=%v (-want +got):\n%s", ok, err, diff)
			}
		})
	}
}

func TestShowTellsOnlyOfFailures(t *testing.T) {
	input := line("run", "p", "A") +
		`{"Action":"output","Package":"p","Test":"A","Output":"=== RUN   A\n"}` + "\n" +
		`{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: wrong\n"}` + "\n" +
		line("fail", "p", "A") +
		`{"Action":"output","Package":"p","Test":"B","Output":"    b_test.go:1: chatter\n"}` + "\n" +
		line("pass", "p", "B") +
		line("run", "p", "C") +
		`{"Action":"output","Package":"p","Test":"C","Output":"panic: wrong too\n"}` + "\n" +
		`{"Action":"output","Package":"p","Output":"FAIL\n"}` + "\n" +
		`{"Action":"fail","Package":"p","Elapsed":1.25}` + "\n" +
		`{"Action":"build-output","ImportPath":"q","Output":"q.go:1: syntax error\n"}` + "\n"
	var got strings.Builder
	if err := show(&got, strings.NewReader(input)); err != nil {
		t.Fatal(err)
	}
	want := "    a_test.go:1: wrong\npanic: wrong too\nfail p 1.2s\nq.go:1: syntax error\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func mustWrite(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "output.json")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
