{{/* What a pod may connect to: DNS, whom it serves with, and what the values add. Takes (dict "root" $
"workload" w). */}}
{{- define "paceline.egress" -}}
{{- $root := .root -}}
{{- $scope := . -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- if eq .workload.role "coordinator" }}
{{- range $role, $port := dict "target" "grpc" "draft" "grpc" "redis" "redis" }}
- ports: [{port: {{ $port }}}]
  to:
    - podSelector:
        matchLabels:
          {{- include "paceline.releaseLabels" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $role }}
{{- end }}
{{- end }}
{{- if gt (int .workload.ranks) 1 }}
- to:
    - podSelector:
        matchLabels:
          {{- include "paceline.selector" $scope | nindent 10 }}
{{- end }}
{{- with include "paceline.collectorPort" $root }}
# Traces, wherever the collector is.
- ports: [{port: {{ . }}, protocol: TCP}]
{{- end }}
{{- with $root.Values.networkPolicy.egress.rules }}
{{ toYaml . }}
{{- end }}
{{- end -}}
