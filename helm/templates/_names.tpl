{{/* Names and labels. */}}

{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of all names: short enough for what is put behind it. */}}
{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "paceline.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "paceline.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects everything of a release. */}}
{{- define "paceline.releaseLabels" -}}
app.kubernetes.io/name: {{ include "paceline.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of objects that belong to no workload. */}}
{{- define "paceline.labels" -}}
{{ include "paceline.releaseLabels" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | trunc 63 | regexFind "^.*[A-Za-z0-9]" | quote }}
app.kubernetes.io/part-of: paceline
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What selects the pods of a workload. Takes (dict "root" $ "workload" w). */}}
{{- define "paceline.selector" -}}
{{ include "paceline.releaseLabels" .root }}
app.kubernetes.io/component: {{ .workload.role }}
{{- with .workload.pool }}
paceline-pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Labels of the objects of a workload. */}}
{{- define "paceline.workloadLabels" -}}
{{ include "paceline.labels" .root }}
app.kubernetes.io/component: {{ .workload.role }}
{{- with .workload.pool }}
paceline-pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "paceline.serviceAccount" -}}
{{- $account := .workload.block.serviceAccount -}}
{{- $account.name | default (ternary .workload.name "default" $account.create) -}}
{{- end -}}

{{- define "paceline.image" -}}
{{- $own := .workload.block.image -}}
{{- $shared := .root.Values.image -}}
{{- $repository := $own.repository | default (printf "%s-%s" $shared.repository .workload.image) -}}
{{- $name := list $shared.registry $repository | compact | join "/" -}}
{{- if $own.digest -}}
{{- printf "%s@%s" $name $own.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (coalesce $own.tag $shared.tag .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
