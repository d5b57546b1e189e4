{{- define "toolscout.name" -}}
{{- printf "%s-%s" .Release.Name "toolscout" | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "toolscout.labels" -}}
app.kubernetes.io/name: toolscout
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "toolscout.selector" -}}
app.kubernetes.io/name: toolscout
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: service
{{- end -}}

{{- define "toolscout.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "toolscout.port" -}}
{{ eq .Values.command "gateway" | ternary 8765 8766 }}
{{- end -}}

{{- define "toolscout.policySecret" -}}
{{ .Values.policySecret | default (printf "%s-policy" (include "toolscout.name" .)) }}
{{- end -}}

{{- define "toolscout.environment" -}}
- name: TOOLSCOUT_HOME
  value: {{ .Values.home.address | default "/data/home" | quote }}
- name: XDG_DATA_HOME
  value: /data
- name: TOOLSCOUT_DRAIN_SECONDS
  value: {{ .Values.drainSeconds | quote }}
{{- if .Values.home.address }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ required "home.passwordSecret: name a Secret with the key password" .Values.home.passwordSecret }}, key: password}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: TOOLSCOUT_{{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "toolscout.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "toolscout.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "toolscout.mounts" -}}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "toolscout.volumes" -}}
- name: data
{{- if .Values.home.address }}
  emptyDir: {}
{{- else }}
  persistentVolumeClaim: {claimName: {{ include "toolscout.name" . }}}
{{- end }}
- name: tmp
  emptyDir: {}
- name: policy
  secret: {secretName: {{ include "toolscout.policySecret" . }}}
{{- end -}}
