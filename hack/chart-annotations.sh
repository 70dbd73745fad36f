#!/usr/bin/env bash
# Prints annotations of Chart.yaml for Artifact Hub: the changes of a version in CHANGELOG.md, and the image.
#   hack/chart-annotations.sh 0.2.0 registry.example.com/kube-nftproxy:v0.2.0
# A version without a section has the changes of the section Unreleased.
set -euo pipefail
section=$1
grep -qF "## [$section]" CHANGELOG.md || section=Unreleased
echo '  artifacthub.io/changes: |'
awk -v section="## [$section]" '
  function flush() { if (text != "") print kind "\t" text; text = "" }
  /^## / { flush(); inside = index($0, section) == 1; kind = ""; next }
  /^###/ { flush(); kind = tolower($2); if (kind !~ /^(added|changed|deprecated|removed|fixed|security)$/) kind = ""; next }
  /^$/ { flush() }
  inside && kind != "" && /^- / { flush(); text = substr($0, 3); next }
  text != "" { sub(/^ +/, " "); text = text $0 }
  END { flush() }' CHANGELOG.md |
  jq --raw-input --raw-output '"    - " + (split("\t") | {kind: .[0], description: (.[1] | gsub("\\[(?<text>[^]]*)\\]\\([^)]*\\)"; .text))} | tojson)'
printf '  artifacthub.io/images: |\n    - {"name": "kube-nftproxy", "image": "%s"}\n' "$2"
