package page

import (
	"regexp"
	"strings"
)

// Command is a command that a page gives to its readers.
type Command struct {
	// Line is where it stands, from 1.
	Line int
	// Text is the command without prompt and comment.
	Text string
}

var (
	// inline matches what is set as code within a paragraph.
	inline = regexp.MustCompile("`([^`]+)`")
	// program matches the beginning of a command, as opposed to a name, a path or an expression: a program, or a command of ours.
	program = regexp.MustCompile(`^([A-Z_]+=\S+ )*(bin/)?(apt-get|cat|ctr|curl|docker|git|go|helm|install|kind|kube-nftproxy|kubeadm|kubectl|make|nft|pgrep|podman|` +
		`sed|skopeo|ss|sysctl|systemctl|status|services|trace|verify|watch|bundle|render|diff|completion|ip netns) +\S`)
	// remark matches a comment, which is at least two spaces from what it is about.
	remark = regexp.MustCompile(`(^|\s{2,})#( .*)?$`)
)

// Commands returns the commands of a page, in its order: all lines of blocks, fenced (of language sh or none) or indented, in
// blocks of language console those behind a prompt, and whatever is set as code within a paragraph and begins like a command.
func Commands(text string) (found []Command) {
	add := func(line int, command string) {
		if command = strings.Join(strings.Fields(remark.ReplaceAllString(strings.TrimRight(command, "\n"), "")), " "); command != "" {
			found = append(found, Command{Line: line, Text: command})
		}
	}
	open, opened := "", 0
	code := func(line int, text string) { // a command ends at the end of a line, unless a quotation is open
		if open == "" {
			opened = line
		}
		if open += remark.ReplaceAllString(strings.TrimRight(text, "\n"), "") + "\n"; strings.Count(open, "'")%2 == 0 {
			add(opened, open)
			open = ""
		}
	}
	fence, fenced, prose, began := "", false, "", 0
	paragraph := func() {
		for _, at := range inline.FindAllStringSubmatchIndex(prose, -1) {
			span := strings.Join(strings.Fields(prose[at[2]:at[3]]), " ")
			if program.MatchString(span) || span == "make" {
				add(began+strings.Count(prose[:at[0]], "\n"), span)
			}
		}
		prose = ""
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		shifted, indented := strings.CutPrefix(line, "    ")
		prompted, isPrompted := prompt(line)
		language, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence:
			paragraph()
			fence, fenced = language, !fenced
		case fenced && (fence == "" || fence == "sh"):
			code(n, line)
		case fenced && fence == "console" && isPrompted:
			code(n, prompted)
		case fenced:
		case strings.TrimSpace(line) == "":
			paragraph()
		case indented && prose == "":
			shifted, _ = prompt(shifted)
			code(n, shifted)
		default:
			if prose == "" {
				began = n
			}
			prose += line
		}
	}
	paragraph()
	return found
}

// prompt returns a line without its prompt, and whether it has one.
func prompt(line string) (string, bool) {
	for _, p := range []string{"$ ", "# "} {
		if command, ok := strings.CutPrefix(line, p); ok {
			return command, true
		}
	}
	return line, false
}
