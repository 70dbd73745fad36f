{{- /* The objects are those of deploy/base, beside, startup-taint, flow-control and monitoring: the templates read the
files of these folders. */ -}}

{{- /* read returns the text of a file: (list $ PATH) */ -}}
{{- define "kube-nftproxy.read" -}}
{{- $path := index . 1 -}}
{{- (index . 0).Files.Get $path | required (printf "This copy of the chart lacks %s. The folder is a symbolic link, which a tool may have dropped: use the packaged chart." $path) -}}
{{- end -}}

{{- define "kube-nftproxy.name" -}}
kube-nftproxy{{ if .Values.canary }}-canary{{ end }}{{ with .Values.serviceProxyName }}-{{ . }}{{ end }}
{{- end -}}

{{- define "kube-nftproxy.labels" -}}
{{- range (include "kube-nftproxy.read" (list . "base/kustomization.yaml") | fromYaml).labels -}}
{{ toYaml .pairs }}
{{ end -}}
app.kubernetes.io/instance: {{ include "kube-nftproxy.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* object writes an object with the chart's labels and namespace: (list $ OBJECT) */ -}}
{{- define "kube-nftproxy.object" -}}
{{- $ := index . 0 -}}
{{- $object := index . 1 -}}
{{- if not (regexMatch "^(Cluster|Validating|FlowSchema|PriorityLevel)" $object.kind) -}}
{{- $_ := set $object.metadata "namespace" $.Release.Namespace -}}
{{- end -}}
{{- $labels := merge (include "kube-nftproxy.labels" $ | fromYaml) ($object.metadata.labels | default dict) -}}
{{- if $.Values.serviceProxyName -}}{{- $_ := set $labels "k8s-app" (include "kube-nftproxy.name" $) -}}{{- end -}}
{{- $_ := set $object.metadata "labels" $labels -}}
---
{{ toYaml $object }}
{{ end -}}

{{- /* objects writes the objects of a file, in the chart's namespace, with its suffix of names: (list $ PATH [LABELS]) */ -}}
{{- define "kube-nftproxy.objects" -}}
{{- $ := index . 0 -}}
{{- $labels := dict -}}
{{- if gt (len .) 2 -}}{{- $labels = index . 2 -}}{{- end -}}
{{- $text := include "kube-nftproxy.read" . -}}
{{- $name := include "kube-nftproxy.name" $ -}}
{{- range list "name: %s\n" "serviceaccount:kube-system:%s\"" "%s-startup-taint" -}}
{{- $text = replace (printf . "kube-nftproxy") (printf . $name) $text -}}
{{- end -}}
{{- $text = replace "kube-system" $.Release.Namespace $text -}}
{{- range splitList "\n---\n" $text -}}
{{- $object := fromYaml . -}}
{{- $_ := set $object.metadata "labels" (merge (deepCopy $labels) ($object.metadata.labels | default dict)) -}}
{{- include "kube-nftproxy.object" (list $ $object) -}}
{{- end -}}
{{- end -}}
