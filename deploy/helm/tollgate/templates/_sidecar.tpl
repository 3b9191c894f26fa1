{{/*
tollgate beside an application, as a native sidecar. A chart that depends on this one has `tollgate: { fleet: { enabled: false } }`
in its values, and in the pod's spec:

  initContainers:
    {{- include "tollgate.sidecar.container" .Subcharts.tollgate | nindent 4 }}
  volumes:
    {{- include "tollgate.sidecar.volumes" .Subcharts.tollgate | nindent 4 }}

and in the application's container:

  env:
    - { name: TOLLGATE_ADDRESS, value: {{ include "tollgate.sidecar.address" .Subcharts.tollgate | quote }} }
  volumeMounts:
    {{- include "tollgate.sidecar.mounts" .Subcharts.tollgate | nindent 4 }}

The application calls 127.0.0.1:50051 of its own pod. With `sidecar.listen: socket` it calls unix:/run/tollgate/grpc.sock, in the
volume that is mounted then. Other pods reach neither: only metrics and probes have a port.
*/}}

{{/* Where the application asks. */}}
{{- define "tollgate.sidecar.address" -}}
{{- if eq .Values.sidecar.listen "socket" -}}unix:/run/tollgate/grpc.sock{{- else -}}127.0.0.1:{{ .Values.ports.grpc }}{{- end -}}
{{- end }}

{{/* What the application mounts for it, as a list. */}}
{{- define "tollgate.sidecar.mounts" -}}
{{- if eq .Values.sidecar.listen "socket" -}}
- { name: tollgate-run, mountPath: /run/tollgate, readOnly: true }
{{- else -}}
[]
{{- end -}}
{{- end }}

{{- define "tollgate.sidecar.listen" -}}
grpc:
  - "unix:/run/tollgate/grpc.sock?mode=0666"
  {{- if eq .Values.sidecar.listen "loopback" }}
  - "127.0.0.1:{{ .Values.ports.grpc }}"
  {{- end }}
metrics: "plaintext:{{ .Values.listen.host }}:{{ .Values.ports.metrics }}"
admin: "unix:/run/tollgate/admin.sock"
lame_duck: {{ .Values.listen.lameDuck }}
{{- end }}

{{/* Whoever reaches the port of a sidecar could spend anybody's quota. */}}
{{- define "tollgate.sidecar.reached" -}}
{{- $http := get .listen "http" | default "" -}}
{{- range append .listen.grpc $http -}}
{{- if not (include "tollgate.local" .) -}}
{{- fail (printf "config.listen has %s, where other pods could ask a sidecar; write an address on loopback, or of a Unix socket" .) -}}
{{- end -}}
{{- end -}}
{{- include "tollgate.reached" (dict "name" "metrics" "addresses" (list .listen.metrics) "port" .Values.ports.metrics) -}}
{{- end }}

{{- define "tollgate.sidecar.container" -}}
- name: tollgate
  image: {{ include "tollgate.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  # Starts before the application and ends after it.
  restartPolicy: Always
  args: [--config, /etc/tollgate/tollgate.yaml, --log-format, json, --log-level, {{ .Values.logLevel | quote }}]
  ports:
    - { name: metrics, containerPort: {{ .Values.ports.metrics }} }
  {{- with include "tollgate.environment" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- include "tollgate.probes" . | nindent 2 }}
  resources: {{- .Values.sidecar.resources | toYaml | nindent 4 }}
  securityContext: {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - { name: tollgate-config, mountPath: /etc/tollgate, readOnly: true }
    - { name: tollgate-run, mountPath: /run/tollgate }
    {{- with include "tollgate.mounts" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "tollgate.sidecar.volumes" -}}
- { name: tollgate-config, configMap: { name: {{ include "tollgate.fullname" . }}-sidecar } }
- { name: tollgate-run, emptyDir: { medium: Memory, sizeLimit: 1Mi } }
{{- include "tollgate.volumes" . }}
{{- end }}
