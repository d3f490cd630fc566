{{- define "warmpath.name" -}}
{{- if contains "warmpath" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-warmpath" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "warmpath.selector" -}}
app.kubernetes.io/name: warmpath
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmpath.labels" -}}
{{ include "warmpath.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The namespace whose EndpointSlices are watched; empty: none are. */ -}}
{{- define "warmpath.watched" -}}
{{- $discovery := .Values.config.discovery | default dict -}}
{{- $source := $discovery.kubernetes | default dict -}}
{{- if or $source.service $source.selector }}{{ $source.namespace | default .Release.Namespace }}{{ end -}}
{{- end }}

{{- /* What is spoken at the admin port: `https` where `config.listen.admin_tls` names a certificate. */ -}}
{{- define "warmpath.adminScheme" -}}
{{- $listen := .Values.config.listen | default dict -}}
{{- $tls := $listen.admin_tls | default dict -}}
{{- if $tls.certificate }}https{{ else }}http{{ end -}}
{{- end }}

{{- /* How a kubelet asks at the admin port for `path`: it has no certificate to show, so that where one is asked for it sees only
whether somebody listens. */ -}}
{{- define "warmpath.probe" -}}
{{- $listen := .root.Values.config.listen | default dict -}}
{{- $tls := $listen.admin_tls | default dict -}}
{{- if $tls.client_authorities -}}
tcpSocket: {port: admin}
{{- else -}}
httpGet: {path: {{ .path }}, port: admin, scheme: {{ include "warmpath.adminScheme" .root | upper }}}
{{- end -}}
{{- end }}
