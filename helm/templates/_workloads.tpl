{{/*
What runs: coordinator, target, one pool of drafts each, Redis. Every other template goes through this
list, and none knows of more than it says of each:
  name      of its objects            role      coordinator, target, draft or redis
  pool      of drafts, else empty     block     its values, `defaults` included
  image     end of its image's name   command   of its container
  ports     name to number            health    name of its gRPC health service
  env       name to text or valueFrom files     Secrets that are mounted
  ranks     pods of a group; 1: pods stand alone
*/}}

{{- define "paceline.workloads" -}}
{{- $found := list (include "paceline.coordinator" . | fromYaml) (include "paceline.target" . | fromYaml) -}}
{{- range $pool, $block := .Values.drafts -}}
{{- if not (kindIs "invalid" $block) -}}
{{- $found = append $found (include "paceline.draft" (dict "root" $ "pool" $pool "block" $block) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
{{- $found = append $found (include "paceline.redis" . | fromYaml) -}}
{{- end -}}
{{- range $found -}}
{{- if .Error }}{{ fail .Error }}{{ end -}}
{{- end -}}
{{- dict "list" $found | toJson -}}
{{- end -}}

{{/* Values of a workload, of which later ones win. Takes the list of maps. */}}
{{- define "paceline.block" -}}
{{- $block := dict -}}
{{- $variables := list -}}
{{- range . -}}
{{- $block = mergeOverwrite $block (deepCopy .) -}}
{{- $variables = append $variables (.extraEnv | default dict) -}}
{{- end -}}
{{- set $block "extraEnv" (include "paceline.lastOf" $variables | fromJson) | toJson -}}
{{- end -}}

{{- define "paceline.coordinator" -}}
{{- $block := include "paceline.block" (list .Values.defaults .Values.coordinator) | fromJson -}}
name: {{ include "paceline.fullname" . }}-coordinator
role: coordinator
pool: ""
ranks: 1
image: coordinator
command: [python, -m, coordinator]
ports: {http: 8000, grpc: 50051, health: 50052}
health: paceline.v1.CoordinatorService
block: {{ toJson $block }}
env: {{ include "paceline.coordinatorEnv" (dict "root" . "block" $block) }}
files: {{ (include "paceline.coordinatorSecrets" . | fromJson).files | toJson }}
{{- end -}}

{{- define "paceline.target" -}}
{{- $block := include "paceline.block" (list .Values.defaults .Values.workerDefaults .Values.target) | fromJson -}}
name: {{ include "paceline.fullname" . }}-target
role: target
pool: ""
ranks: {{ int $block.tensorParallelSize }}
image: {{ ternary "engine-cuda" "engine" (gt (int $block.gpu.count) 0) }}
command: [python, -m, target_service]
ports: {grpc: 50061, health: 50062, metrics: 9061}
health: paceline.v1.TargetService
block: {{ toJson $block }}
env: {{ include "paceline.targetEnv" (dict "root" . "block" $block "port" 50061) }}
files: {{ (include "paceline.workerSecrets" . | fromJson).files | toJson }}
{{- end -}}

{{- define "paceline.draft" -}}
{{- $values := .root.Values -}}
{{- $block := include "paceline.block" (list $values.defaults $values.workerDefaults .block) | fromJson -}}
{{- $runsTargetModel := has (include "paceline.drafter" $block) (list "auto" "eagle" "medusa" "hybrid" "early-exit" "self") -}}
{{- $model := ternary (dig "model" "" ($values.target.settings | default dict)) "" $runsTargetModel -}}
name: {{ include "paceline.fullname" .root }}-draft-{{ .pool }}
role: draft
pool: {{ .pool | quote }}
ranks: 1
image: {{ ternary "engine-cuda" "engine" (gt (int $block.gpu.count) 0) }}
command: [python, -m, draft_service]
ports: {grpc: 50071, health: 50072, metrics: 9071}
health: paceline.v1.DraftService
block: {{ toJson $block }}
env: {{ include "paceline.workerEnv" (dict "root" .root "block" $block "port" 50071 "model" $model) }}
files: {{ (include "paceline.workerSecrets" .root | fromJson).files | toJson }}
{{- end -}}

{{/* How a pool of drafts proposes. Takes its values. */}}
{{- define "paceline.drafter" -}}
{{- dig "drafter" "suffix" (.settings | default dict) -}}
{{- end -}}

{{/* A Redis for development: what is lost with it is how to go on with an answer that broke off. When
its room is used up, those records go first that would be the first to go anyway. */}}
{{- define "paceline.redis" -}}
{{- $block := include "paceline.block" (list .Values.defaults (omit .Values.redis "enabled" "external")) | fromJson -}}
{{- $memory := dig "limits" "memory" "256Mi" $block.resources -}}
{{/* 0 would be without a limit. */}}
{{- $room := max 1 (div (mul 3 (include "paceline.mebibytes" $memory | int)) 4) -}}
name: {{ include "paceline.fullname" . }}-redis
role: redis
pool: ""
ranks: 1
image: redis
command: [redis-server, --protected-mode, "no", --dir, /tmp, --save, "", --appendonly, "no", --maxmemory, {{ $room }}mb, --maxmemory-policy, volatile-ttl]
ports: {redis: 6379}
health: ""
block: {{ toJson $block }}
env: {{ toJson $block.extraEnv }}
files: []
{{- end -}}
