#!/usr/bin/env bash
# Searches for known vulnerabilities in the code that the program calls, and in Go itself. The database is online (vuln.go.dev), so CI
# does not run this script. Usage: [GOVULNCHECK=latest] hack/vuln.sh [argument of govulncheck ...]     (default: ./cmd/...)
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./cmd/...
exec go run golang.org/x/vuln/cmd/govulncheck@${GOVULNCHECK:-latest} "$@"
