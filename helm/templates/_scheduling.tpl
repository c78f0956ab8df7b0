{{/* On which nodes pods run. Takes (dict "root" $ "workload" w). */}}
{{- define "paceline.scheduling" -}}
{{- $root := .root -}}
{{- $workload := .workload -}}
{{- $block := $workload.block -}}
{{- $nodes := deepCopy $block.nodeSelector -}}
{{- $tolerations := $block.tolerations -}}
{{- $gpu := $block.gpu | default (dict "count" 0) -}}
{{- if gt (int $gpu.count) 0 -}}
{{- $tolerations = append $tolerations (dict "key" $gpu.resource "operator" "Exists" "effect" "NoSchedule") -}}
{{- with $gpu.product }}{{ $_ := set $nodes "nvidia.com/gpu.product" . }}{{ end -}}
{{- end -}}
{{- range $key, $value := dict "priorityClassName" $block.priorityClassName "runtimeClassName" $block.runtimeClassName "schedulerName" $block.schedulerName }}
{{- if $value }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- with $nodes }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $block.affinity }}
affinity:
  {{- toYaml $block.affinity | nindent 2 }}
{{- else if dig "labels" dict (.group | default dict) }}
affinity:
  # Ranks talk to one another in every pass, so those of a group belong near each other.
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: topology.kubernetes.io/zone
          labelSelector:
            matchLabels:
              {{- include "paceline.selector" . | nindent 14 }}
              {{- toYaml .group.labels | nindent 14 }}
{{- end }}
{{- /* Groups are not spread: the constraints would count ranks, and draw those of a group apart. */}}
{{- with ternary $block.topologySpreadConstraints list (not .group) }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml (omit . "labelSelector") | nindent 4 | trim }}
    labelSelector:
      {{- if .labelSelector }}
      {{- toYaml .labelSelector | nindent 6 }}
      {{- else }}
      matchLabels:
        {{- include "paceline.selector" (dict "root" $root "workload" $workload) | nindent 8 }}
      {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
