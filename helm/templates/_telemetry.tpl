{{/* Variables about traces and logs, of our services only. Takes (dict "root" $ "workload" w). What the
workload's own `env` says wins over them. */}}
{{- define "paceline.telemetryEnv" -}}
{{- $telemetry := .root.Values.telemetry -}}
{{- $env := dict -}}
{{- if ne .workload.role "redis" -}}
{{- $_ := set $env "PACELINE_LOG_LEVEL" $telemetry.logLevel -}}
{{- $_ := set $env "PACELINE_LOG_FORMAT" $telemetry.logFormat -}}
{{- if $telemetry.endpoint -}}
{{- $_ := set $env "OTEL_EXPORTER_OTLP_ENDPOINT" $telemetry.endpoint -}}
{{- $_ := set $env "OTEL_EXPORTER_OTLP_PROTOCOL" $telemetry.protocol -}}
{{- $_ := set $env "OTEL_TRACES_SAMPLER" $telemetry.sampler -}}
{{- $_ := set $env "OTEL_TRACES_SAMPLER_ARG" (include "paceline.text" $telemetry.samplerArg) -}}
{{- range $name, $path := dict "POD_NAME" "metadata.name" "POD_UID" "metadata.uid" "NODE_NAME" "spec.nodeName" -}}
{{- $field := dict "valueFrom" (dict "fieldRef" (dict "fieldPath" $path)) -}}
{{- $_ := set $env (printf "OTEL_RESOURCE_ATTRIBUTES_%s" $name) $field -}}
{{- end -}}
{{- $_ := set $env "OTEL_RESOURCE_ATTRIBUTES" (include "paceline.resourceAttributes" .) -}}
{{- with $telemetry.headers.existingSecret -}}
{{- $reference := dict "name" . "key" $telemetry.headers.key -}}
{{- $_ := set $env "OTEL_EXPORTER_OTLP_HEADERS" (dict "valueFrom" (dict "secretKeyRef" $reference)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $env | toJson -}}
{{- end -}}

{{/* Where a span was recorded; an instance is what the conventions for Kubernetes advise. */}}
{{- define "paceline.resourceAttributes" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $pod := "$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME)" -}}
{{- $attributes := dict
  "k8s.namespace.name" $namespace
  "k8s.pod.name" $pod
  "k8s.pod.uid" "$(OTEL_RESOURCE_ATTRIBUTES_POD_UID)"
  "k8s.node.name" "$(OTEL_RESOURCE_ATTRIBUTES_NODE_NAME)"
  "k8s.container.name" .workload.role
  "service.instance.id" (printf "%s.%s.%s" $namespace $pod .workload.role) -}}
{{- if eq (.workload.ranks | default 1 | int) 1 -}}
{{- $_ := set $attributes "k8s.deployment.name" .workload.name -}}
{{- end -}}
{{- $parts := list -}}
{{- range $name, $value := mergeOverwrite $attributes .root.Values.telemetry.resourceAttributes -}}
{{- $parts = append $parts (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- join "," $parts -}}
{{- end -}}

{{/* Port of the collector; empty where there is none. */}}
{{- define "paceline.collectorPort" -}}
{{- with .Values.telemetry.endpoint -}}
{{- $url := urlParse . -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end -}}
{{- end -}}
