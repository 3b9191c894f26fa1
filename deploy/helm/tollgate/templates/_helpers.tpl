{{- define "tollgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tollgate.name" . -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end -}}
{{- end }}

{{- define "tollgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tollgate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end }}

{{/* The store, as tollgate's config names it. */}}
{{- define "tollgate.store" -}}
{{- $store := .Values.store -}}
url: {{ required "store.url is missing; name a Redis, such as redis://redis:6379/0" $store.url | quote }}
{{- with $store.username }}
username: {{ . | quote }}
{{- end }}
{{- if $store.passwordSecret.name }}
password_file: /run/secrets/tollgate/store/password
{{- end }}
{{- if $store.caSecret.name }}
tls: { ca_file: /run/secrets/tollgate/store/ca.crt }
{{- end }}
{{- end }}

{{/* The config without what is reloaded: a change of it needs a restart. A sidecar serves one pod, so one worker is enough. */}}
{{- define "tollgate.settings" -}}
{{- $store := include "tollgate.store" . | fromYaml -}}
{{- $config := omit .Values.config "default_plan" "envoy" -}}
{{- $workers := ternary dict (dict "workers" 1) .Values.fleet.enabled -}}
{{- merge (dict "listen" .listen "store" (merge $store (default dict (get $config "store")))) $config $workers | toYaml -}}
{{- end }}

{{/* The whole config. .listen is its section of addresses. */}}
{{- define "tollgate.config" -}}
{{ include "tollgate.settings" . }}
{{ merge (dict "plans" .Values.plans) (pick .Values.config "default_plan" "envoy") | toYaml }}
{{- end }}

{{/* What every container of tollgate has: the level "restricted" of Pod Security, and no file that it may write to. */}}
{{- define "tollgate.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: { drop: [ALL] }
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* The probes ask over the Unix socket, which is never encrypted: so they are the same with TLS and without. */}}
{{- define "tollgate.probes" -}}
startupProbe:
  exec: { command: [/tollgate, health, --address, "unix:/run/tollgate/grpc.sock", --timeout, 2s] }
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 30
# Fails as soon as the process is told to stop, while calls are still answered (listen.lame_duck). It does not follow Redis.
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
# By gRPC, since that makes the decisions.
livenessProbe:
  exec: { command: [/tollgate, health, --address, "unix:/run/tollgate/grpc.sock", --timeout, 2s] }
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
{{- end }}

{{- define "tollgate.storeMounts" -}}
{{- if or .Values.store.passwordSecret.name .Values.store.caSecret.name }}
- { name: tollgate-store, mountPath: /run/secrets/tollgate/store, readOnly: true }
{{- end }}
{{- end }}

{{- define "tollgate.storeVolume" -}}
{{- $store := .Values.store -}}
{{- if or $store.passwordSecret.name $store.caSecret.name }}
- name: tollgate-store
  projected:
    sources:
      {{- with $store.passwordSecret }}
      {{- if .name }}
      - secret: { name: {{ .name }}, items: [{ key: {{ .key }}, path: password }] }
      {{- end }}
      {{- end }}
      {{- with $store.caSecret }}
      {{- if .name }}
      - secret: { name: {{ .name }}, items: [{ key: {{ .key }}, path: ca.crt }] }
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
