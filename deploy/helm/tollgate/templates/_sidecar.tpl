{{/*
tollgate beside an application, as a native sidecar. A chart that depends on this one has `tollgate: { fleet: { enabled: false } }`
in its values, and in the pod's spec:

  initContainers:
    {{- include "tollgate.sidecar.container" .Subcharts.tollgate | nindent 4 }}
  volumes:
    {{- include "tollgate.sidecar.volumes" .Subcharts.tollgate | nindent 4 }}

The application calls 127.0.0.1:50051 of its own pod. With `sidecar.listen: socket` it calls unix:/run/tollgate/grpc.sock, after
mounting the volume tollgate-run at /run/tollgate. Other pods reach neither: only metrics and probes have a port.
*/}}

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

{{- define "tollgate.sidecar.container" -}}
- name: tollgate
  image: {{ include "tollgate.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  # Starts before the application and ends after it.
  restartPolicy: Always
  args: [--config, /etc/tollgate/tollgate.yaml, --log-format, json, --log-level, {{ .Values.logLevel | quote }}]
  ports:
    - { name: metrics, containerPort: {{ .Values.ports.metrics }} }
  {{- include "tollgate.probes" . | nindent 2 }}
  resources: {{- .Values.sidecar.resources | toYaml | nindent 4 }}
  securityContext: {{- include "tollgate.securityContext" . | nindent 4 }}
  volumeMounts:
    - { name: tollgate-config, mountPath: /etc/tollgate, readOnly: true }
    - { name: tollgate-run, mountPath: /run/tollgate }
    {{- with include "tollgate.storeMounts" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "tollgate.sidecar.volumes" -}}
- { name: tollgate-config, configMap: { name: {{ include "tollgate.fullname" . }}-sidecar } }
- { name: tollgate-run, emptyDir: { medium: Memory, sizeLimit: 1Mi } }
{{- include "tollgate.storeVolume" . }}
{{- end }}
