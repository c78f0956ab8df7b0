{{/* Arithmetic with quantities of Kubernetes. */}}

{{/* Whole CPUs of `resources`, at least 1; empty where none are asked for. */}}
{{- define "paceline.cpus" -}}
{{- $cpu := dig "requests" "cpu" (dig "limits" "cpu" "" .) . | toString -}}
{{- if hasSuffix "m" $cpu -}}
{{- max 1 (div (trimSuffix "m" $cpu | int) 1000) -}}
{{- else if $cpu -}}
{{- max 1 (floor ($cpu | float64) | int) -}}
{{- end -}}
{{- end -}}

{{/* Whole mebibytes of a quantity of memory: 256Mi, 2Gi, 500M, 1G, or bytes. */}}
{{- define "paceline.mebibytes" -}}
{{- $text := . | toString -}}
{{- $factors := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 "m" 0.001 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "E" 1000000000000000000 -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $number := trimSuffix $unit $text | float64 -}}
{{- $factor := get $factors $unit | default 1 -}}
{{- divf (mulf $number ($factor | float64)) 1048576.0 | floor | int -}}
{{- end -}}

{{/* A value as a variable of a process: whole numbers without exponent, lists with commas. */}}
{{- define "paceline.text" -}}
{{- if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (include "paceline.text" .) }}{{ end -}}
{{- join "," $parts -}}
{{- else if and (kindIs "float64" .) (eq (floor .) (. | float64)) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- . | toString -}}
{{- end -}}
{{- end -}}
