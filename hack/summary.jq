# Sums up the outputs of "go test -json" of all lanes. Usage: jq -nrR -f hack/summary.jq bin/test/*.json
#
# A test that several lanes ran counts once: if it failed in one of them, it failed, and if it passed in one of them, it
# was not skipped. Subtests count instead of their test, and tests instead of their package, unless it alone failed.

# Each event has a rank, and the largest one of a test leads to its outcome. A test that only started has failed.
def rank: {run: 0, skip: 1, pass: 2, fail: 3}[.Action];
def outcome: ["fail", "skip", "pass", "fail"][map(.rank) | max];

# A test sorts directly before its subtests.
def without_parents: . as $tests
  | [range(length) | $tests[.] as $t | select($tests[. + 1].id[:$t.id | length] != $t.id) | $t];

def count(outcome): map(select(.outcome == outcome)) | length;

# Lines that are not events come from programs that write past the tests.
[inputs | fromjson? | select(rank) | select(.Test or .Action == "fail")
  | {id: ([.Package] + (.Test // "" | split("/"))), rank: rank}]
| group_by(.id) | map({id: .[0].id, outcome: outcome})
| (map(select(.outcome == "fail")) | without_parents) + (without_parents | map(select(.outcome != "fail")))
| (.[] | select(.outcome != "pass") | "\(.outcome): \(.id[0]) \(.id[1:] | join("/"))"),
  "\neach test once:\n\(count("pass")) passed, \(count("fail")) failed, \(count("skip")) skipped"
