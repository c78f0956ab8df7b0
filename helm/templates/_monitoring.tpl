{{/* Whether an object for Prometheus is made: "yes", or empty. Takes (dict "root" $ "wanted" `auto`, true or
false); auto: where the cluster knows the Prometheus Operator's objects. */}}
{{- define "paceline.isMade" -}}
{{- if eq (toString .wanted) "auto" -}}
{{- ternary "yes" "" (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}
{{- else -}}
{{- ternary "yes" "" .wanted -}}
{{- end -}}
{{- end -}}

{{/* For a Prometheus that looks for annotations of pods instead; none as a rule. Takes (dict "root" $
"workload" w). */}}
{{- define "paceline.scrapeAnnotations" -}}
{{- if and .root.Values.monitoring.scrapeAnnotations (ne .workload.role "redis") -}}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ .workload.ports.metrics | default .workload.ports.http | toString | quote }}
{{- if and (eq .workload.role "coordinator") .root.Values.security.tls.coordinator.existingSecret }}
prometheus.io/scheme: https
{{- end }}
{{- end -}}
{{- end -}}

{{/* A time such as 15s or 500ms. */}}
{{- define "paceline.milliseconds" -}}
{{- mul (regexFind "^[0-9]+" . | int) (get (dict "ms" 1 "s" 1000 "m" 60000) (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{- define "paceline.validateMonitoring" -}}
{{- $monitors := .Values.monitoring.monitors -}}
{{- if gt (include "paceline.milliseconds" $monitors.scrapeTimeout | int) (include "paceline.milliseconds" $monitors.interval | int) -}}
{{- fail (printf "monitoring.monitors.scrapeTimeout is %s, longer than the interval, %s, for which the Prometheus Operator leaves monitors out" $monitors.scrapeTimeout $monitors.interval) -}}
{{- end -}}
{{- if and .Values.security.tls.coordinator.clientCertificates (not $monitors.clientSecret) (include "paceline.isMade" (dict "root" . "wanted" $monitors.enabled)) -}}
{{- fail "monitoring.monitors.clientSecret is required, since security.tls.coordinator.clientCertificates lets in nobody without a certificate; or monitoring.monitors.enabled false" -}}
{{- end -}}
{{- end -}}
