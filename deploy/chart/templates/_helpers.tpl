{{- define "kube-nftproxy.name" -}}
kube-nftproxy{{ if .Values.canary }}-canary{{ end }}{{ with .Values.serviceProxyName }}-{{ . }}{{ end }}
{{- end -}}

{{- /* app is the label k8s-app: the plugin, the PodMonitor and kubectl find the pods by it. */ -}}
{{- define "kube-nftproxy.app" -}}
kube-nftproxy{{ with .Values.serviceProxyName }}-{{ . }}{{ end }}
{{- end -}}

{{- define "kube-nftproxy.labels" -}}
k8s-app: {{ include "kube-nftproxy.app" . }}
app.kubernetes.io/name: kube-nftproxy
app.kubernetes.io/component: service-proxy
app.kubernetes.io/part-of: kubernetes
app.kubernetes.io/instance: {{ include "kube-nftproxy.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* configMap is the name of the ConfigMap of a node group: (list $ GROUP VALUES). It has a hash of the content, so
that a change is a rolling update, and a pod never gets files of another revision. */ -}}
{{- define "kube-nftproxy.configMap" -}}
{{- $ := index . 0 -}}
{{- $group := index . 1 -}}
{{- $values := index . 2 -}}
{{- if $values.existingConfigMap -}}
{{ $values.existingConfigMap }}
{{- else -}}
{{ include "kube-nftproxy.daemonSet" . }}-{{ include "kube-nftproxy.files" $values | sha256sum | trunc 10 }}
{{- end -}}
{{- end -}}

{{- /* daemonSet is the name of the DaemonSet of a node group: (list $ GROUP) */ -}}
{{- define "kube-nftproxy.daemonSet" -}}
{{ include "kube-nftproxy.name" (index . 0) }}{{ with index . 1 }}-{{ . }}{{ end }}
{{- end -}}

{{- /* image is the image of a node group: (list $ VALUES) */ -}}
{{- define "kube-nftproxy.image" -}}
{{- $ := index . 0 -}}
{{- with (index . 1).image -}}
{{ .repository | required "Set image.repository to the name of the image in your registry, such as registry.example.com/kube-nftproxy." }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* affinity is the affinity of the values with conditions in each term of the required nodes:
(list VALUES CONDITIONS) */ -}}
{{- define "kube-nftproxy.affinity" -}}
{{- $affinity := deepCopy ((index . 0).affinity | default dict) -}}
{{- if index . 1 -}}
{{- $nodes := $affinity.nodeAffinity | default dict -}}
{{- $any := dict "nodeSelectorTerms" (list dict) -}}
{{- $required := $nodes.requiredDuringSchedulingIgnoredDuringExecution | default $any -}}
{{- range $term := $required.nodeSelectorTerms -}}
{{- $_ := set $term "matchExpressions" (concat ($term.matchExpressions | default list) (index $ 1)) -}}
{{- end -}}
{{- $_ := set $nodes "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "nodeAffinity" $nodes -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end -}}
