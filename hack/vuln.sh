#!/usr/bin/env bash
# Looks for known vulnerabilities in what the program calls, and in Go itself. The database is online (vuln.go.dev), so CI
# doesn't run this. Usage: [GOVULNCHECK=latest] hack/vuln.sh [argument of govulncheck ...]     (default: ./cmd/...)
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./cmd/...
exec go run golang.org/x/vuln/cmd/govulncheck@${GOVULNCHECK:-latest} "$@"
