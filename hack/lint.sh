#!/usr/bin/env bash
# Checks the source without running it. Every check is one line, also in the format of go test -json in the file $1, if
# given. All checks run, even if one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
report=${1:-/dev/null}
failed=0

check() { # name, command...: what the command says is shown only if it fails
  local name=$1 out action=pass
  shift
  out=$("$@" 2>&1) || action=fail
  printf '%-5s %s\n' "$action" "$name"
  [ $action = pass ] || { failed=1 && echo "$out"; }
  printf '{"Action":"%s","Package":"lint","Test":"%s"}\n' $action "$name" >>"$report"
}

format() { unformatted=$(gofmt -l cmd hack pkg test) && echo "$unformatted" && [ -z "$unformatted" ]; }
tools=$PWD/hack/tools
tool() { go tool -modfile="$tools/go.mod" "$@"; }
apart() { (cd "$1" && shift && "$@"); }
tidy() { (cd "$1" && go mod tidy -diff); }
syntax() { for script in hack/*.sh .ci/run; do bash -n "$script"; done; }

# tidies checks all modules but those of neighbours: it would download the tests of all their dependencies, and make neighbours builds them
# only if they are complete. It waits mostly for the network.
tidies() {
  while read -r module; do
    check "go mod tidy in ${module#./}" tidy "$module"
  done < <(find . -name go.mod -not -path './bin/*' -not -path './.git/*' -not -path './test/neighbours/*' -printf '%h\n' | sort)
  return $failed
}

tidied=$(mktemp)
trap 'rm -f "$tidied"' EXIT
tidies >"$tidied" &
check gofmt format
check "shell syntax" syntax
check "vet -tags e2e,twin,kernels,neighbours,skew,site,release" go vet -tags e2e,twin,kernels,neighbours,skew,site,release ./...
check staticcheck tool staticcheck -tags e2e,twin,kernels,neighbours,skew,site,release ./...
check errcheck tool errcheck -ignoretests -exclude hack/tools/errcheck.txt ./cmd/... ./hack/... ./pkg/...
check actionlint tool actionlint # the workflows of .github
for module in hack/*/go.mod; do # programs with dependencies that nothing else has
  module=${module%/go.mod}
  [ "$module" != hack/tools ] || continue
  check "vet in $module" apart "$module" go vet ./...
  check "staticcheck in $module" apart "$module" tool staticcheck ./...
  check "errcheck in $module" apart "$module" tool errcheck -ignoretests -exclude "$tools/errcheck.txt" ./...
done
wait $! || failed=1
cat "$tidied"
exit $failed
