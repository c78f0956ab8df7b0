{{/*
Variables of the processes, as maps of a name to a text or to `valueFrom`: a map has no name twice.
Later maps win: what the chart derives, `settings`, `extraEnv`.
*/}}

{{- define "paceline.coordinatorEnv" -}}
{{- $redis := .root.Values.redis -}}
{{- $secrets := include "paceline.coordinatorSecrets" .root | fromJson -}}
{{- $env := dict
  "PACELINE_HTTP_PORT" "8000"
  "PACELINE_GRPC_PORT" "50051"
  "PACELINE_HEALTH_PORT" "50052"
  "PACELINE_TARGETS" (include "paceline.source" (dict "root" .root "role" "target"))
  "PACELINE_DRAFTS" (include "paceline.source" (dict "root" .root "role" "draft")) -}}
{{- if $redis.external.url -}}
{{- $_ := set $env "PACELINE_REDIS_URL" $redis.external.url -}}
{{- with $redis.external.username }}{{ $_ := set $env "PACELINE_REDIS_USERNAME" . }}{{ end -}}
{{- else if $redis.enabled -}}
{{- $_ := set $env "PACELINE_REDIS_URL" (printf "redis://%s-redis:6379/0" (include "paceline.fullname" .root)) -}}
{{- end -}}
{{- include "paceline.lastOf" (list $env $secrets.env (include "paceline.commonEnv" . | fromJson) (include "paceline.valuesEnv" .block | fromJson)) -}}
{{- end -}}

{{/* What target and drafts have. Takes (dict "root" $ "block" its values "port" its gRPC port), of a
draft also "model", the target's. */}}
{{- define "paceline.workerEnv" -}}
{{- $secrets := include "paceline.workerSecrets" .root | fromJson -}}
{{- $env := dict
  "PACELINE_PORT" (toString .port)
  "PACELINE_HEALTH_PORT" (add .port 1 | toString)
  "PACELINE_METRICS_PORT" (sub .port 41000 | toString)
  "PACELINE_CACHE_DIR" "/var/cache/paceline"
  "HF_HOME" "/var/cache/paceline" -}}
{{- with include "paceline.cpus" .block.resources }}{{ $_ := set $env "PACELINE_NUM_THREADS" . }}{{ end -}}
{{- if gt (int .block.gpu.count) 0 }}{{ $_ := set $env "PACELINE_DEVICE" "cuda" }}{{ end -}}
{{- with .model }}{{ $_ := set $env "PACELINE_MODEL" . }}{{ end -}}
{{- include "paceline.lastOf" (list $env $secrets.env (include "paceline.commonEnv" . | fromJson) (include "paceline.valuesEnv" .block | fromJson)) -}}
{{- end -}}

{{/* Drafts that are left to find a head by themselves need a target that keeps what it is fed with. */}}
{{- define "paceline.targetEnv" -}}
{{- $settings := .block.settings | default dict -}}
{{- $env := include "paceline.workerEnv" . | fromJson -}}
{{- if not (or (hasKey $settings "head") (hasKey $settings "feature_layers")) -}}
{{- $env = merge $env (dict "PACELINE_HEAD" "auto") -}}
{{- end -}}
{{- $env | toJson -}}
{{- end -}}

{{/* What all three services have. Workers and coordinators that ask nobody who they are have to be
told so; that the values say it, too, is checked in _validate.tpl. */}}
{{- define "paceline.commonEnv" -}}
{{- $env := dict
  "HOME" "/tmp"
  "PACELINE_HOST" "0.0.0.0"
  "PACELINE_DRAIN_SECONDS" (include "paceline.text" .block.drainSeconds) -}}
{{- if .root.Values.security.allowUnauthenticated -}}
{{- $_ := set $env "PACELINE_ALLOW_UNAUTHENTICATED" "true" -}}
{{- end -}}
{{- $env | toJson -}}
{{- end -}}

{{/* `settings` as variables, `max_model_len: 4096` being PACELINE_MAX_MODEL_LEN, then `extraEnv`. */}}
{{- define "paceline.valuesEnv" -}}
{{- $env := dict -}}
{{- range $name, $value := .settings -}}
{{- $_ := set $env (printf "PACELINE_%s" (upper $name)) (include "paceline.text" $value) -}}
{{- end -}}
{{- include "paceline.lastOf" (list $env .extraEnv) -}}
{{- end -}}

{{/* Maps of variables as one, where the last that has a name has it whole: two `valueFrom` merged would
be a variable from two places. Takes their list. */}}
{{- define "paceline.lastOf" -}}
{{- $last := dict -}}
{{- range $map := . -}}
{{- range $name, $value := $map }}{{ $_ := set $last $name $value }}{{ end -}}
{{- end -}}
{{- $last | toJson -}}
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
