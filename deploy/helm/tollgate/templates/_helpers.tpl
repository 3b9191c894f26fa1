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

{{/* Of the Job that checks the config: none that a Service or a policy of the fleet selects by. */}}
{{- define "tollgate.check.labels" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}-check
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tollgate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end }}

{{/* The store, as tollgate's config names it. What config.store says beats what is made of the other values. */}}
{{- define "tollgate.store" -}}
{{- $own := get .Values.config "store" | default dict | deepCopy -}}
{{- $store := dict -}}
{{- with .Values.store.url }}{{- $_ := set $store "url" . }}{{- end -}}
{{- with .Values.store.username }}{{- $_ := set $store "username" . }}{{- end -}}
{{- if .Values.store.passwordSecret.name }}{{- $_ := set $store "password_file" "/run/secrets/tollgate/store/password" }}{{- end -}}
{{- if .Values.store.caSecret.name }}{{- $_ := set $store "tls" (dict "ca_file" "/run/secrets/tollgate/store/ca.crt") }}{{- end -}}
{{- $store = mergeOverwrite $store $own -}}
{{- $_ := required "store.url is missing; name a Redis, such as redis://redis:6379/0" (get $store "url") -}}
{{- toYaml $store -}}
{{- end }}

{{/* The ports of the servers that the store's URL names, by spaces. Without TCP there are none. */}}
{{- define "tollgate.storePorts" -}}
{{- $url := (include "tollgate.store" . | fromYaml).url -}}
{{- if regexMatch "^(redis|valkey)s?(-sentinel|-cluster)?://" $url -}}
{{- $sentinel := contains "-sentinel://" $url -}}
{{- $first := regexReplaceAll "^[a-z-]+://([^/?#]*).*$" $url "${1}" -}}
{{- $ports := list (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $first) | default (ternary "26379" "6379" $sentinel)) -}}
{{- range regexFindAll "[?&]node=[^&#]*" $url -1 }}{{- $ports = append $ports (regexFind "[0-9]+$" (regexReplaceAll "%3[aA]" . ":")) }}{{- end -}}
{{/* Where the servers are that Sentinels name, no URL tells. */}}
{{- if $sentinel }}{{- $ports = append $ports "6379" }}{{- end -}}
{{- join " " $ports -}}
{{- end -}}
{{- end }}

{{/* The addresses. config.listen beats what the chart makes; the socket that the probes ask by is always there. */}}
{{- define "tollgate.listen" -}}
{{- $ports := dict "grpc" .Values.ports.grpc "metrics" .Values.ports.metrics -}}
{{- if and .Values.fleet.enabled .Values.http.enabled }}{{- $_ := set $ports "http" .Values.ports.http }}{{- end -}}
{{- if ne (len (values $ports | uniq)) (len $ports) -}}
{{- fail (printf "two of the ports are equal (%s); each address needs one of its own" (toJson $ports)) -}}
{{- end -}}
{{- $made := include (ternary "tollgate.fleet.listen" "tollgate.sidecar.listen" .Values.fleet.enabled) . | fromYaml -}}
{{- $listen := mergeOverwrite $made (get .Values.config "listen" | default dict | deepCopy) -}}
{{- $grpc := $listen.grpc -}}
{{- if not (kindIs "slice" $grpc) }}{{- $grpc = splitList "," $grpc }}{{- end -}}
{{- if not (regexMatch "(^| )unix:/run/tollgate/grpc[.]sock([?][^ ]*)?( |$)" (join " " $grpc)) -}}
{{- $grpc = append $grpc "unix:/run/tollgate/grpc.sock" -}}
{{- end -}}
{{- $_ := set $listen "grpc" $grpc -}}
{{- include (ternary "tollgate.fleet.reached" "tollgate.sidecar.reached" .Values.fleet.enabled) (dict "Values" .Values "listen" $listen) -}}
{{- if and (get $listen "tls") (not (hasPrefix "plaintext:" $listen.metrics)) -}}
{{- fail (printf "config.listen.metrics is encrypted by listen.tls, and scrapes and the readiness probe ask without; leave it out, or write plaintext:%s" $listen.metrics) -}}
{{- end -}}
{{- toYaml $listen -}}
{{- end }}

{{/* Fails unless one of .addresses is at the port of ports.NAME, where other pods reach it. */}}
{{- define "tollgate.reached" -}}
{{- $end := printf ":%d" (int .port) -}}
{{- $reached := false -}}
{{- range .addresses }}{{- if and (hasSuffix $end .) (not (include "tollgate.local" .)) }}{{- $reached = true }}{{- end }}{{- end -}}
{{- if not $reached -}}
{{- fail (printf "config.listen.%s has no address that other pods reach at ports.%s, which is %d; leave it out, or write %s0.0.0.0%s" .name .name (int .port) (ternary "plaintext:" "" (eq .name "metrics")) $end) -}}
{{- end -}}
{{- end }}

{{/* Whether an address is reached from its own pod alone. */}}
{{- define "tollgate.local" -}}
{{- if regexMatch "^$|^unix:|^(plaintext:)?(127[.]|localhost:|\\[::1\\])" . }}true{{- end -}}
{{- end }}

{{/*
The config without what is reloaded: a change of it needs a restart. Each worker takes memory, so there are as many as the limits of
the values have room for, and not one per core of any node. A sidecar serves one pod, so one is enough.
*/}}
{{- define "tollgate.settings" -}}
{{- $listen := include "tollgate.listen" . | fromYaml -}}
{{- $store := include "tollgate.store" . | fromYaml -}}
{{- $workers := dict "workers" (ternary 4 1 .Values.fleet.enabled) -}}
{{- mergeOverwrite $workers (omit .Values.config "default_plan" "envoy" "overrides" "plans") (dict "listen" $listen "store" $store) | toYaml -}}
{{- end }}

{{/* The whole config. Its own plans, if there are any, stand in place of the values' plans. */}}
{{- define "tollgate.config" -}}
{{ include "tollgate.settings" . }}
{{ merge (dict "plans" (get .Values.config "plans" | default .Values.plans)) (pick .Values.config "default_plan" "envoy" "overrides") | toYaml }}
{{- end }}

{{/* What the environment of tollgate has beside. Its variables beat the config. */}}
{{- define "tollgate.environment" -}}
{{- with .Values.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The same for the Job that checks the config. A Secret or ConfigMap that this release has yet to make is not there before an install,
and its Job would wait for it in vain. So each of them may be missing, and its variables are then left out.
*/}}
{{- define "tollgate.check.environment" -}}
{{- $extra := pick .Values "extraEnv" "extraEnvFrom" | deepCopy -}}
{{- range $extra.extraEnv -}}
{{- $from := get . "valueFrom" | default dict -}}
{{- range list "secretKeyRef" "configMapKeyRef" }}{{ with get $from . }}{{ $_ := set . "optional" true }}{{ end }}{{ end -}}
{{- end -}}
{{- range $source := $extra.extraEnvFrom -}}
{{- range list "secretRef" "configMapRef" }}{{ with get $source . }}{{ $_ := set . "optional" true }}{{ end }}{{ end -}}
{{- end -}}
{{- include "tollgate.environment" (dict "Values" $extra) -}}
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

{{- define "tollgate.mounts" -}}
{{- if or .Values.store.passwordSecret.name .Values.store.caSecret.name }}
- { name: tollgate-store, mountPath: /run/secrets/tollgate/store, readOnly: true }
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tollgate.volumes" -}}
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
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
