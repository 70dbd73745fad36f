package house

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// dangers are classes of commands that change more than one node or object, or that open a firewall. No remedy, Event, log message, alert or
// page has one: a reader in a hurry copies it.
var dangers = []struct {
	name    string
	command *regexp.Regexp
	// unless matches commands of the class that name a node or an object.
	unless *regexp.Regexp
	// bad and good are examples.
	bad, good []string
}{
	{
		name: "deletes the rules of all programs", command: regexp.MustCompile(`\bnft\b[^|;` + "`" + `]*\bflush ruleset|\bip6?tables(-\w+)?( -t \w+)? (-F|-X|--flush|--delete-chain)( |$|` + "`" + `|"|;)`),
		unless: regexp.MustCompile(`\bip6?tables\S*( -t \w+)? (-F|-X) [A-Z]`),
		bad:    []string{"nft flush ruleset", "nft -a 'flush ruleset'", "iptables -F", "ip6tables-legacy -t nat -F"},
		good:   []string{"nft flush table ip x", "a firewall's flush ruleset", "iptables -F DOCKER-USER"},
	},
	{
		name: "opens a firewall", command: regexp.MustCompile(`\bnft\b.*policy accept|\bip6?tables\S* .*-P \w+ ACCEPT|\bip6?tables\S* (-t \w+ )?-[AI] [A-Z-]+( \d+)? -j ACCEPT|\bnft (add|insert) rule \S+ \S+ \S+ accept` +
			`|\bufw (disable|default allow)|setenforce 0|systemctl (stop|disable|mask)( --now)? (firewalld|ufw|nftables|iptables|docker)|--set-default-zone=trusted`),
		bad: []string{"nft chain inet f c '{ policy accept; }'", "iptables -P FORWARD ACCEPT", "iptables -A FORWARD -j ACCEPT", "nft add rule inet f c accept", "ufw disable",
			"systemctl stop firewalld", "iptables -I FORWARD 1 -j ACCEPT"},
		good: []string{"nft add rule inet f c ct status dnat accept", "iptables -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", "policy drop"},
	},
	{
		name: "deletes a proxy on all nodes", command: regexp.MustCompile(`kubectl\b.* delete (ds|daemonsets?)(\.apps)?\b`),
		bad: []string{"kubectl -n kube-system delete daemonset kube-proxy", "kubectl delete ds -l x=y"}, good: []string{"kubectl -n kube-system delete pod kube-nftproxy-x7f2p"},
	},
	{
		name: "deletes pods on all nodes", command: regexp.MustCompile(`kubectl\b.* delete pods? .*(-l|--selector|--all)\b`), unless: regexp.MustCompile(`spec\.nodeName=`),
		bad:  []string{"kubectl -n kube-system delete pod -l k8s-app=kube-nftproxy", "kubectl delete pods --all"},
		good: []string{"kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=node-1"},
	},
	{
		name: "restarts all objects of a kind", command: regexp.MustCompile(`kubectl\b.* rollout restart( |$|` + "`" + `|")`), unless: regexp.MustCompile(`rollout restart (daemonset|ds|deployment)[ /][\w$]`),
		bad:  []string{"kubectl rollout restart", "kubectl -n kube-system rollout restart ds"},
		good: []string{"kubectl -n kube-system rollout restart daemonset/kube-nftproxy", "kubectl rollout status ds/x"},
	},
	{
		name: "changes all objects", command: regexp.MustCompile(`kubectl\b.* (label|annotate|taint|drain|cordon|delete|patch|scale)\b.* --all( |$|` + "`" + `|")`),
		bad: []string{"kubectl label node --all a=b", "kubectl delete services --all", "kubectl drain --all"}, good: []string{"kubectl label node node-1 a=b", "kubectl get pods --all-namespaces"},
	},
	{
		name: "deletes all tracked connections", command: regexp.MustCompile(`conntrack (-F|--flush)|conntrack (-D|--delete)`), unless: regexp.MustCompile(`conntrack -D .*-s .*-d `),
		bad: []string{"conntrack -F", "conntrack -D -p udp", "conntrack --flush"}, good: []string{"conntrack -D -p udp -s 10.0.0.1 -d 10.96.0.10 --sport 5 --dport 53", "conntrack -L"},
	},
	{
		name: "gives anybody permissions", command: regexp.MustCompile(`clusterrole=(cluster-admin|admin|edit)\b|--(user|group)=system:(anonymous|unauthenticated|authenticated|serviceaccounts)\b`),
		bad:  []string{"kubectl create clusterrolebinding x --clusterrole=cluster-admin --user=y", "--group=system:authenticated"},
		good: []string{"kubectl create clusterrolebinding x --clusterrole=system:node-proxier --user=y"},
	},
}

// danger returns the class of a dangerous command in a line, or "".
func danger(line string) string {
	for _, d := range dangers {
		if d.command.MatchString(line) && (d.unless == nil || !d.unless.MatchString(line)) {
			return d.name
		}
	}
	return ""
}

func TestDanger(t *testing.T) {
	for _, d := range dangers {
		for _, line := range d.bad {
			lab.Same(t, d.name, danger(line), "%q: danger(line)", line)
		}
		for _, line := range d.good {
			lab.Same(t, "", danger(line), "%q: danger(line)", line)
		}
	}
}

// TestAdviceIsHarmless reads the strings of the program, the pages and the manifests.
func TestAdviceIsHarmless(t *testing.T) {
	read := 0
	check := func(at, text string) {
		read++
		if class := danger(text); class != "" {
			t.Errorf("%s: %s: %s", at, class, strings.TrimSpace(text))
		}
	}
	for _, s := range sources(t) {
		if s.test() || !strings.HasPrefix(s.dir, "pkg/") && !strings.HasPrefix(s.dir, "cmd/") {
			continue
		}
		for _, text := range texts(s.File) {
			check(s.name, text)
		}
	}
	if read < 1000 {
		t.Errorf("only %d strings in the program", read)
	}
	for _, name := range files(t) {
		if !slices.Contains([]string{".md", ".yaml", ".json"}, path.Ext(name)) || strings.Contains(name, "testdata") {
			continue
		}
		for i, line := range strings.Split(mustRead(t, name), "\n") {
			check(name+":"+strconv.Itoa(i+1), line)
		}
	}
}

// texts returns the string literals of a file. Concatenated literals are one text.
func texts(file *ast.File) (list []string) {
	var value func(e ast.Expr) string
	value = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
				return text
			}
		case *ast.BinaryExpr:
			return value(e.X) + value(e.Y)
		}
		return "" // another operand
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, is := n.(ast.Expr)
		if !is {
			return true
		}
		text := value(e)
		if text == "" {
			return true
		}
		list = append(list, text)
		_, whole := n.(*ast.BinaryExpr)
		return !whole
	})
	return list
}
