{{/* What the schema cannot say: values that do not go together. Each message names the key. */}}
{{- define "paceline.validate" -}}
{{- $security := .Values.security -}}
{{- if not $security.allowUnauthenticated -}}
{{- if not $security.apiKeys.existingSecret -}}
{{- fail "security.apiKeys.existingSecret is required, since security.allowUnauthenticated is false" -}}
{{- end -}}
{{- if not $security.workerApiKeys.existingSecret -}}
{{- fail "security.workerApiKeys.existingSecret is required, since security.allowUnauthenticated is false" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.redis.enabled .Values.redis.external.url -}}
{{- fail "redis.enabled should be false, since redis.external.url names another Redis" -}}
{{- end -}}
{{- end -}}
