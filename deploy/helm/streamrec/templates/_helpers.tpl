{{/* The name of all objects: the release's, so that a namespace can have several fleets. */}}
{{- define "streamrec.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end }}

{{- define "streamrec.selector" -}}
app.kubernetes.io/name: streamrec
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streamrec.labels" -}}
{{ include "streamrec.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "streamrec.configuration" -}}
{{ .Values.configuration | default (.Files.Get "files/feeder.toml") }}
{{- end }}

{{- define "streamrec.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{ .Values.tls.secret | default (printf "%s-tls" (include "streamrec.name" .)) }}
{{- else -}}
{{ .Values.tls.secret }}
{{- end -}}
{{- end }}

{{/* Refuses values that would render pods which cannot start. */}}
{{- define "streamrec.check" -}}
{{- $text := include "streamrec.configuration" . -}}
{{- if and (include "streamrec.tlsSecret" .) (not (contains "/run/secrets/tls/" $text)) -}}
{{- fail "tls: the configuration names no certificate; set [server] tls = { cert = \"/run/secrets/tls/tls.crt\", key = \"/run/secrets/tls/tls.key\" } in it" -}}
{{- end -}}
{{- if and .Values.tokens.secret (not (contains "/run/secrets/tokens/" $text)) -}}
{{- fail "tokens: the configuration names no file of the secret; set tokens = [\"/run/secrets/tokens/KEY\"] in it, in [server] or in a dataset" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.min) (int .Values.autoscaling.max)) -}}
{{- fail "autoscaling: min is more than max" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuer.name) -}}
{{- fail "tls: cert-manager needs an issuer; set tls.certManager.issuer.name" -}}
{{- end -}}
{{- end }}

{{/* The series by which the fleet is sized, and how much of each a feeder takes: docs/how-to/size-a-fleet.md. */}}
{{- define "streamrec.loads" -}}
{{- with .Values.autoscaling -}}
cores: {{ divf (mulf .cores .target) 100 | quote }}
{{- if .link }}
bytes: {{ divf (mulf .link .target) 100 | int64 | quote }}
{{- end }}
{{- if .sessions }}
sessions: {{ .sessions | quote }}
{{- end }}
{{- end -}}
{{- end }}

{{/* Up at once, as far as needed; down slowly: each feeder that goes makes its clients connect again. */}}
{{- define "streamrec.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
    - {type: Pods, value: 4, periodSeconds: 15}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.coolDown }}
  policies:
    - {type: Percent, value: 30, periodSeconds: 60}
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end }}
