{{/*
What each tier is scaled by. A signal is a rule of files/prometheus-adapter.yaml: its name is that of the
metric for a HorizontalPodAutoscaler, its query is asked by a ScaledObject.
*/}}

{{/* Signals of a role: their key in `autoscaling.targets` to their rule. Takes the role. */}}
{{- define "paceline.signals" -}}
{{- $signals := dict
  "coordinator" (dict "streams" "paceline_streams")
  "target" (dict "verifyWaitSeconds" "paceline_verify_wait_seconds" "kvUsage" "paceline_kv_usage")
  "draft" (dict "proposalsWaiting" "paceline_proposals_waiting" "busyShare" "paceline_busy_share") -}}
{{- get $signals . | default dict | toJson -}}
{{- end -}}

{{/* Those with a target, by their rules. Takes a workload. */}}
{{- define "paceline.targets" -}}
{{- $found := dict -}}
{{- $targets := .block.autoscaling.targets -}}
{{- range $key, $rule := include "paceline.signals" .role | fromJson -}}
{{- with get $targets $key }}{{ $_ := set $found $rule (include "paceline.text" .) }}{{ end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* A signal of all pods of a workload together. Takes (dict "root" $ "workload" w "rule" its name). */}}
{{- define "paceline.signalQuery" -}}
{{- $matchers := list (printf "namespace=%q" .root.Release.Namespace) -}}
{{- range $label, $value := include "paceline.seriesLabels" .workload | fromJson -}}
{{- $matchers = append $matchers (printf "%s=%q" $label $value) -}}
{{- end -}}
{{- $rule := .rule -}}
{{- range (.root.Files.Get "files/prometheus-adapter.yaml" | fromYaml).rules.external -}}
{{- if eq .name.as $rule -}}
{{- .metricsQuery | replace "<<.LabelMatchers>>" (join "," $matchers) | replace "<<.GroupBy>>" "" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* By what the series of a workload are known beside the namespace. Takes a workload. */}}
{{- define "paceline.seriesLabels" -}}
{{- .block.autoscaling.seriesLabels | default (dict "job" .name) | toJson -}}
{{- end -}}

{{- define "paceline.scaleTarget" -}}
{{- if gt (int .ranks) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
name: {{ .name }}-ranks
{{- else -}}
apiVersion: apps/v1
kind: Deployment
name: {{ .name }}
{{- end -}}
{{- end -}}

{{/* Quickly up, slowly down: one pod at a time, the next one when this one has had the time to end its
answers. What the values say wins. Takes a workload. */}}
{{- define "paceline.scaleBehavior" -}}
{{- $grace := include "paceline.graceSeconds" . | int -}}
{{- $up := dict
  "stabilizationWindowSeconds" 0
  "selectPolicy" "Max"
  "policies" (list (dict "type" "Pods" "value" 2 "periodSeconds" 60) (dict "type" "Percent" "value" 100 "periodSeconds" 60)) -}}
{{- $down := dict
  "stabilizationWindowSeconds" (min 3600 (max 300 $grace))
  "policies" (list (dict "type" "Pods" "value" 1 "periodSeconds" (min 1800 (max 60 $grace)))) -}}
{{- mergeOverwrite (dict "scaleUp" $up "scaleDown" $down) (deepCopy .block.autoscaling.behavior) | toYaml -}}
{{- end -}}

{{/* Takes (dict "key" of its block "workload" w "given" the block as it was written "groupKind" of the
target "keda" its values). */}}
{{- define "paceline.validateAutoscaling" -}}
{{- $key := printf "%s.autoscaling" .key -}}
{{- $scaling := .workload.block.autoscaling -}}
{{- $role := .workload.role -}}
{{- $signals := include "paceline.signals" $role | fromJson -}}
{{- range $name, $_ := dig "autoscaling" "targets" dict .given -}}
{{- if not (hasKey $signals $name) -}}
{{- fail (printf "%s.targets.%s is set, and a %s is scaled by %s" $key $name $role (keys $signals | sortAlpha | join " and ")) -}}
{{- end -}}
{{- end -}}
{{- if ne $scaling.type "none" -}}
{{- if eq $role "redis" -}}
{{- fail (printf "%s.type is %s, but this Redis is a single pod; expected none" $key $scaling.type) -}}
{{- end -}}
{{- if and (gt (int .workload.ranks) 1) (eq .groupKind "StatefulSet") -}}
{{- fail (printf "%s.type is %s, but groups that are StatefulSets cannot be scaled; expected none, or target.groupKind LeaderWorkerSet" $key $scaling.type) -}}
{{- end -}}
{{- if lt (int $scaling.maxReplicas) (int $scaling.minReplicas) -}}
{{- fail (printf "%s.maxReplicas is %d; expected at least minReplicas, %d" $key (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq (int $scaling.minReplicas) 0) (or (ne $role "draft") (ne $scaling.type "keda")) -}}
{{- fail (printf "%s.minReplicas is 0, which only drafts may have, with type keda; expected at least 1" $key) -}}
{{- end -}}
{{- if and (eq (include "paceline.targets" .workload) "{}") (not $scaling.extraMetrics) -}}
{{- fail (printf "%s.type is %s, and all targets are 0; expected one above 0, or extraMetrics" $key $scaling.type) -}}
{{- end -}}
{{- range $index, $metric := $scaling.extraMetrics -}}
{{- if ne (hasKey $metric "metadata") (eq $scaling.type "keda") -}}
{{- fail (printf "%s.extraMetrics[%d] is a %s, and type is %s" $key $index (ternary "trigger of KEDA" "metric of a HorizontalPodAutoscaler" (hasKey $metric "metadata")) $scaling.type) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $scaling.type "keda") (not .keda.serverAddress) -}}
{{- fail (printf "autoscaling.keda.serverAddress is required, since %s.type is keda" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One question of a ScaledObject to Prometheus. Takes (dict "keda" its values "name" "query" "threshold"
"ignoreNull" whether no answer means 0). */}}
{{- define "paceline.trigger" -}}
type: prometheus
name: {{ .name | replace "_" "-" }}
metadata:
  serverAddress: {{ .keda.serverAddress }}
  {{- with .keda.authModes }}
  authModes: {{ . }}
  {{- end }}
  threshold: {{ .threshold | quote }}
  ignoreNullValues: {{ .ignoreNull | quote }}
  query: {{ .query | toJson }}
{{- with ternary .keda.authenticationRef dict (ne .keda.authenticationRef.name "") }}
authenticationRef:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
