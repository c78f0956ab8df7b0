{{/*
What processes are shown of Secrets: `files`, mounted at /etc/paceline/<name>, of which the kubelet
replaces the contents when a Secret changes, and `env`, the settings that name them.
*/}}

{{/* Adds a mounted Secret and the settings for it to `to`. Takes (dict "to" "name" "secret" "keys"),
where `keys` is a setting's name to a key of the Secret. Nothing where there is no Secret. */}}
{{- define "paceline.addSecret" -}}
{{- if .secret -}}
{{- $items := list -}}
{{- $name := .name -}}
{{- $to := .to -}}
{{- range $setting, $key := .keys -}}
{{- $items = append $items (dict "key" $key "path" $key) -}}
{{- $_ := set $to.env (printf "PACELINE_%s_FILE" $setting) (printf "/etc/paceline/%s/%s" $name $key) -}}
{{- end -}}
{{- $_ := set $to "files" (append $to.files (dict "name" $name "secret" .secret "items" (uniq $items))) -}}
{{- end -}}
{{- end -}}

{{- define "paceline.coordinatorSecrets" -}}
{{- $security := .Values.security -}}
{{- $tls := $security.tls -}}
{{- $redis := .Values.redis.external -}}
{{- $found := dict "env" (dict) "files" (list) -}}
{{- $keys := dict "API_KEYS" $security.apiKeys.key -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "keys" "secret" $security.apiKeys.existingSecret "keys" $keys) -}}
{{- $keys = dict "WORKER_API_KEY" $security.workerApiKeys.shownKey -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "worker-key" "secret" $security.workerApiKeys.existingSecret "keys" $keys) -}}
{{- $keys = dict "TLS_CERTIFICATE" "tls.crt" "TLS_PRIVATE_KEY" "tls.key" -}}
{{- if $tls.coordinator.clientCertificates }}{{ $_ := set $keys "TLS_CLIENT_CA" "ca.crt" }}{{ end -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "tls" "secret" $tls.coordinator.existingSecret "keys" $keys) -}}
{{- $keys = dict "WORKER_TLS_CA" "ca.crt" -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "worker-ca" "secret" $tls.workers.existingSecret "keys" $keys) -}}
{{- $keys = dict "WORKER_TLS_CERTIFICATE" "tls.crt" "WORKER_TLS_PRIVATE_KEY" "tls.key" -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "worker-tls" "secret" $tls.workers.clientSecret "keys" $keys) -}}
{{- if $tls.workers.existingSecret -}}
{{- $_ := set $found.env "PACELINE_WORKER_TLS_SERVER_NAME" (include "paceline.workerName" .) -}}
{{- end -}}
{{- $keys = dict "REDIS_PASSWORD" $redis.passwordKey -}}
{{- with $redis.sentinelPasswordKey }}{{ $_ := set $keys "SENTINEL_PASSWORD" . }}{{ end -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "redis-password" "secret" $redis.existingSecret "keys" $keys) -}}
{{- $keys = dict "REDIS_TLS_CA" "ca.crt" -}}
{{- if $redis.tls.clientCertificate }}{{ $_ := set $keys "REDIS_TLS_CERTIFICATE" "tls.crt" }}{{ $_ := set $keys "REDIS_TLS_PRIVATE_KEY" "tls.key" }}{{ end -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "redis-tls" "secret" $redis.tls.existingSecret "keys" $keys) -}}
{{- $found | toJson -}}
{{- end -}}

{{- define "paceline.workerSecrets" -}}
{{- $security := .Values.security -}}
{{- $tls := $security.tls.workers -}}
{{- $found := dict "env" (dict) "files" (list) -}}
{{- $keys := dict "API_KEYS" $security.workerApiKeys.acceptedKey -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "keys" "secret" $security.workerApiKeys.existingSecret "keys" $keys) -}}
{{- $keys = dict "TLS_CERTIFICATE" "tls.crt" "TLS_PRIVATE_KEY" "tls.key" -}}
{{- if $tls.clientSecret }}{{ $_ := set $keys "TLS_CLIENT_CA" "ca.crt" }}{{ end -}}
{{- include "paceline.addSecret" (dict "to" $found "name" "tls" "secret" $tls.existingSecret "keys" $keys) -}}
{{- with .Values.huggingFace.existingSecret -}}
{{- $reference := dict "name" . "key" $.Values.huggingFace.key -}}
{{- $_ := set $found.env "HF_TOKEN" (dict "valueFrom" (dict "secretKeyRef" $reference)) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The name that all workers' certificates are for: pods are reached by their addresses. */}}
{{- define "paceline.workerName" -}}
{{- .Values.security.tls.workers.serverName | default (printf "%s-target.%s.svc" (include "paceline.fullname" .) .Release.Namespace) -}}
{{- end -}}
