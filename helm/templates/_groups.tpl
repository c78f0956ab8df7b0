{{/*
A target of several ranks: each group of `tensorParallelSize` pods is one worker, of which the coordinator
knows rank 0 only. Every rank answers its own health, from before it has met the others, so that none is
started again for waiting; the named service of rank 0 is ready when all ranks are, and that of the
others as soon as they run, so that a group is whole or serves nobody. A rank that is lost ends all.
*/}}

{{/* `StatefulSet`, of which one group each is made, or `LeaderWorkerSet`; empty: pods stand alone. */}}
{{- define "paceline.groupKind" -}}
{{- if gt (int .Values.target.tensorParallelSize) 1 -}}
{{- if ne .Values.target.groupKind "auto" -}}
{{- .Values.target.groupKind -}}
{{- else -}}
{{- ternary "LeaderWorkerSet" "StatefulSet" (.Capabilities.APIVersions.Has "leaderworkerset.x-k8s.io/v1") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Label of pods with their rank, by which the downward API tells it, and the Service finds rank 0. */}}
{{- define "paceline.rankLabel" -}}
{{- ternary "leaderworkerset.sigs.k8s.io/worker-index" "apps.kubernetes.io/pod-index" (eq (include "paceline.groupKind" .) "LeaderWorkerSet") -}}
{{- end -}}

{{/* What a rank is told of its group. Takes (dict "root" $ "workload" w "leader" name of rank 0). */}}
{{- define "paceline.rankEnv" -}}
{{- $rank := printf "metadata.labels['%s']" (include "paceline.rankLabel" .root) -}}
{{- $env := dict
  "RANK" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" $rank)))
  "WORLD_SIZE" (toString .workload.ranks)
  "MASTER_ADDR" .leader
  "MASTER_PORT" "29500"
  "PACELINE_TENSOR_PARALLEL_SIZE" (toString .workload.ranks) -}}
{{- $env | toJson -}}
{{- end -}}
