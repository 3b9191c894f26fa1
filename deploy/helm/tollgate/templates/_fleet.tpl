{{/* The addresses of a replica. Without TLS, `plaintext:` tells that they are meant to be so. */}}
{{- define "tollgate.fleet.listen" -}}
{{- $prefix := ternary "" "plaintext:" (eq (include "tollgate.encrypted" .) "true") -}}
grpc:
  - "{{ $prefix }}{{ .Values.listen.host }}:{{ .Values.ports.grpc }}"
  - "unix:/run/tollgate/grpc.sock"
{{- if .Values.http.enabled }}
http: "{{ $prefix }}{{ .Values.listen.host }}:{{ .Values.ports.http }}"
{{- end }}
metrics: "plaintext:{{ .Values.listen.host }}:{{ .Values.ports.metrics }}"
admin: "unix:/run/tollgate/admin.sock"
lame_duck: {{ .Values.listen.lameDuck }}
max_connection_age: {{ .Values.listen.maxConnectionAge }}
{{- if .Values.tls.secretName }}
tls:
  cert_file: /run/secrets/tollgate/tls/tls.crt
  key_file: /run/secrets/tollgate/tls/tls.key
  {{- if .Values.tls.requireClientCertificate }}
  client_ca_file: /run/secrets/tollgate/tls/ca.crt
  {{- with .Values.tls.clientNames }}
  client_names: {{- . | toYaml | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Whether calls are encrypted: by a Secret, or by files that config.listen.tls names. */}}
{{- define "tollgate.encrypted" -}}
{{- if or .Values.tls.secretName (get (get .Values.config "listen" | default dict) "tls") }}true{{- end -}}
{{- end }}

{{/* The Service, the ServiceMonitor and the probes find what they are for. */}}
{{- define "tollgate.fleet.reached" -}}
{{- $ports := .Values.ports -}}
{{- include "tollgate.reached" (dict "name" "grpc" "addresses" .listen.grpc "port" $ports.grpc) -}}
{{- include "tollgate.reached" (dict "name" "metrics" "addresses" (list .listen.metrics) "port" $ports.metrics) -}}
{{- if .Values.http.enabled }}
{{- include "tollgate.reached" (dict "name" "http" "addresses" (list .listen.http) "port" $ports.http) -}}
{{- end -}}
{{- end }}

{{/* What a single value of the schema cannot tell. */}}
{{- define "tollgate.fleet.sound" -}}
{{- if and (hasPrefix "memory:" (include "tollgate.store" . | fromYaml).url) (or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled) -}}
{{- fail "store.url is memory:, where each replica counts for itself; name a Redis, or set replicas to 1 without autoscaling" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled (not .Values.serviceMonitor.enabled) -}}
{{- fail "prometheusRule.enabled needs serviceMonitor.enabled, which makes the job that the alerts are about" -}}
{{- end -}}
{{- if and .Values.tls.clientNames (not .Values.tls.requireClientCertificate) -}}
{{- fail "tls.clientNames is of no use without tls.requireClientCertificate" -}}
{{- end -}}
{{- if and .Values.tls.requireClientCertificate (not .Values.tls.secretName) -}}
{{- fail "tls.requireClientCertificate needs tls.secretName" -}}
{{- end -}}
{{- end }}
