{{/*
Variables of the processes, as maps of a name to a text or to `valueFrom`: a map has no name twice.
Later maps win: what the chart derives, `settings`, `extraEnv`.
*/}}

{{/* What all three services have. Takes (dict "root" $ "block" its values). */}}
{{- define "paceline.serviceEnv" -}}
{{- $env := dict
  "PACELINE_HOST" "0.0.0.0"
  "PACELINE_DRAIN_SECONDS" (include "paceline.text" .block.drainSeconds)
  "HOME" "/tmp" -}}
{{- $env | toJson -}}
{{- end -}}

{{/* `settings` as variables: `max_model_len: 4096` is PACELINE_MAX_MODEL_LEN. */}}
{{- define "paceline.settingsEnv" -}}
{{- $env := dict -}}
{{- range $name, $value := .settings -}}
{{- $_ := set $env (printf "PACELINE_%s" (upper $name)) (include "paceline.text" $value) -}}
{{- end -}}
{{- $env | toJson -}}
{{- end -}}

{{- define "paceline.coordinatorEnv" -}}
{{- $values := .root.Values -}}
{{- $security := $values.security -}}
{{- $env := include "paceline.serviceEnv" . | fromJson -}}
{{- $_ := set $env "PACELINE_HTTP_PORT" "8000" -}}
{{- $_ := set $env "PACELINE_GRPC_PORT" "50051" -}}
{{- $_ := set $env "PACELINE_HEALTH_PORT" "50052" -}}
{{- $_ := set $env "PACELINE_TARGETS" (include "paceline.source" (dict "root" .root "role" "target")) -}}
{{- $_ := set $env "PACELINE_DRAFTS" (include "paceline.source" (dict "root" .root "role" "draft")) -}}
{{- if $values.redis.external.url -}}
{{- $_ := set $env "PACELINE_REDIS_URL" $values.redis.external.url -}}
{{- else if $values.redis.enabled -}}
{{- $_ := set $env "PACELINE_REDIS_URL" (printf "redis://%s-redis:6379/0" (include "paceline.fullname" .root)) -}}
{{- end -}}
{{- if $security.apiKeys.existingSecret -}}
{{- $_ := set $env "PACELINE_API_KEYS_FILE" (printf "/etc/paceline/keys/%s" $security.apiKeys.key) -}}
{{- else -}}
{{- $_ := set $env "PACELINE_ALLOW_UNAUTHENTICATED" "true" -}}
{{- end -}}
{{- if $security.workerApiKeys.existingSecret -}}
{{- $_ := set $env "PACELINE_WORKER_API_KEY_FILE" (printf "/etc/paceline/worker-key/%s" $security.workerApiKeys.shownKey) -}}
{{- end -}}
{{- mergeOverwrite $env (include "paceline.settingsEnv" .block | fromJson) .block.extraEnv | toJson -}}
{{- end -}}

{{/* Services of a role, also of pools that are made later. */}}
{{- define "paceline.source" -}}
{{- $labels := include "paceline.releaseLabels" .root | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/component" .role -}}
{{- $requirements := list -}}
{{- range $label, $value := $labels -}}
{{- $requirements = append $requirements (printf "selector=%s=%s" $label $value) -}}
{{- end -}}
kubernetes://?{{ join "&" $requirements }}
{{- end -}}

{{/* What target and drafts have. Takes (dict "root" $ "block" its values "port" its gRPC port). */}}
{{- define "paceline.workerEnv" -}}
{{- $values := .root.Values -}}
{{- $keys := $values.security.workerApiKeys -}}
{{- $env := include "paceline.serviceEnv" . | fromJson -}}
{{- $_ := set $env "PACELINE_PORT" (toString .port) -}}
{{- $_ := set $env "PACELINE_HEALTH_PORT" (add .port 1 | toString) -}}
{{- $_ := set $env "PACELINE_METRICS_PORT" (sub .port 41000 | toString) -}}
{{- $_ := set $env "PACELINE_CACHE_DIR" "/var/cache/paceline" -}}
{{- $_ := set $env "HF_HOME" "/var/cache/paceline" -}}
{{- with include "paceline.cpus" .block.resources -}}
{{- $_ := set $env "PACELINE_NUM_THREADS" . -}}
{{- end -}}
{{- if gt (int .block.gpu.count) 0 -}}
{{- $_ := set $env "PACELINE_DEVICE" "cuda" -}}
{{- end -}}
{{- if $keys.existingSecret -}}
{{- $_ := set $env "PACELINE_API_KEYS_FILE" (printf "/etc/paceline/keys/%s" $keys.acceptedKey) -}}
{{- else -}}
{{- $_ := set $env "PACELINE_ALLOW_UNAUTHENTICATED" "true" -}}
{{- end -}}
{{- with $values.huggingFace.existingSecret -}}
{{- $reference := dict "name" . "key" $values.huggingFace.key -}}
{{- $_ := set $env "HF_TOKEN" (dict "valueFrom" (dict "secretKeyRef" $reference)) -}}
{{- end -}}
{{- mergeOverwrite $env (include "paceline.settingsEnv" .block | fromJson) .block.extraEnv | toJson -}}
{{- end -}}

{{/* A map of variables as a container has it; references first, since texts may name them. */}}
{{- define "paceline.env" -}}
{{- range $name, $value := . }}
{{- if kindIs "map" $value }}
- name: {{ $name }}
  {{- toYaml $value | nindent 2 }}
{{- end }}
{{- end }}
{{- range $name, $value := . }}
{{- if not (kindIs "map" $value) }}
- name: {{ $name }}
  value: {{ include "paceline.text" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}
