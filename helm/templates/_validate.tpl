{{/* What the schema cannot say: values that do not go together. Each message names the key. */}}
{{- define "paceline.validate" -}}
{{- include "paceline.validateName" . -}}
{{- include "paceline.validateSecurity" . -}}
{{- include "paceline.validateRedis" . -}}
{{- include "paceline.validateTarget" . -}}
{{- include "paceline.validateMonitoring" . -}}
{{- $monitoring := .Values.monitoring -}}
{{- range $key, $labels := dict "monitoring.monitors" $monitoring.monitors.labels "monitoring.rules" $monitoring.rules.labels "monitoring.dashboards" $monitoring.dashboards.labels -}}
{{- include "paceline.validateLabels" (dict "root" $ "key" (printf "%s.labels" $key) "labels" $labels) -}}
{{- end -}}
{{- range (include "paceline.workloads" . | fromJson).list -}}
{{- $key := ternary (printf "drafts.%s" .pool) .role (eq .role "draft") -}}
{{- range $name, $labels := dict "labels" .block.labels "podLabels" .block.podLabels "service.labels" .block.service.labels -}}
{{- include "paceline.validateLabels" (dict "root" $ "key" (printf "%s.%s" $key $name) "labels" $labels) -}}
{{- end -}}
{{- $strategy := .block.updateStrategy -}}
{{- if and (has (toString $strategy.maxSurge) (list "0" "0%")) (has (toString $strategy.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s.updateStrategy.maxSurge and maxUnavailable are both 0, so that no pod could be replaced" $key) -}}
{{- end -}}
{{- if and (ne .role "coordinator") (ne .block.service.type "ClusterIP") -}}
{{- fail (printf "%s.service.type is %s, and only the coordinator is for others to reach; expected ClusterIP" $key .block.service.type) -}}
{{- end -}}
{{- $given := ternary (get $.Values.drafts .pool) (get $.Values .role) (eq .role "draft") -}}
{{- include "paceline.validateAutoscaling" (dict "key" $key "workload" . "given" $given "groupKind" (include "paceline.groupKind" $) "keda" $.Values.autoscaling.keda) -}}
{{- if eq .role "draft" -}}
{{- include "paceline.validateDraft" (dict "root" $ "key" $key "block" .block) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paceline.validateName" -}}
{{- $name := include "paceline.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "names would begin with %q, which those of Services cannot: set fullnameOverride to lower-case letters, digits and dashes, a letter first" $name) -}}
{{- end -}}
{{- end -}}

{{/* Takes (dict "root" $ "key" "target.labels" "labels" these). */}}
{{- define "paceline.validateLabels" -}}
{{- range $label, $value := .labels -}}
{{- if hasKey $.root.Values.commonLabels $label -}}
{{- fail (printf "%s has the label %s, which is in commonLabels, too; expected it in one of them" $.key $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paceline.validateSecurity" -}}
{{- $security := .Values.security -}}
{{- $tls := $security.tls -}}
{{- if and $tls.coordinator.clientCertificates (not $tls.coordinator.existingSecret) -}}
{{- fail "security.tls.coordinator.clientCertificates is true, which needs security.tls.coordinator.existingSecret" -}}
{{- end -}}
{{- range list "clientSecret" "serverName" -}}
{{- if and (get $tls.workers .) (not $tls.workers.existingSecret) -}}
{{- fail (printf "security.tls.workers.%s is set, which needs security.tls.workers.existingSecret" .) -}}
{{- end -}}
{{- end -}}
{{- if not $security.allowUnauthenticated -}}
{{- if not (or $security.apiKeys.existingSecret $tls.coordinator.clientCertificates) -}}
{{- fail "security.allowUnauthenticated is false, which needs security.apiKeys.existingSecret or security.tls.coordinator.clientCertificates" -}}
{{- end -}}
{{- if not (or $security.workerApiKeys.existingSecret $tls.workers.clientSecret) -}}
{{- fail "security.allowUnauthenticated is false, which needs security.workerApiKeys.existingSecret or security.tls.workers.clientSecret" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paceline.validateRedis" -}}
{{- $redis := .Values.redis -}}
{{- $external := $redis.external -}}
{{- if and $redis.enabled $external.url -}}
{{- fail "redis.enabled is true and redis.external.url is set: expected one of them" -}}
{{- end -}}
{{- if and $redis.enabled (gt (int $redis.replicas) 1) -}}
{{- fail (printf "redis.replicas is %d, but this Redis keeps its records by itself; expected 0 or 1" (int $redis.replicas)) -}}
{{- end -}}
{{- if contains "@" $external.url -}}
{{- fail "redis.external.url has a login in it; expected redis.external.username and redis.external.existingSecret" -}}
{{- end -}}
{{- range list "username" "existingSecret" -}}
{{- if and (get $external .) (not $external.url) -}}
{{- fail (printf "redis.external.%s is set, which needs redis.external.url" .) -}}
{{- end -}}
{{- end -}}
{{- range list "username" "sentinelPasswordKey" -}}
{{- if and (get $external .) (not $external.existingSecret) -}}
{{- fail (printf "redis.external.%s is set, which needs redis.external.existingSecret" .) -}}
{{- end -}}
{{- end -}}
{{- if and $external.sentinelPasswordKey (not (regexMatch "^rediss?\\+sentinel://" $external.url)) -}}
{{- fail "redis.external.sentinelPasswordKey is set, and redis.external.url names no Sentinels; expected redis+sentinel:// or rediss+sentinel://" -}}
{{- end -}}
{{- if and $external.tls.existingSecret (not (hasPrefix "rediss" $external.url)) -}}
{{- fail "redis.external.tls.existingSecret is set, and redis.external.url is one without TLS; expected rediss://" -}}
{{- end -}}
{{- if and $external.tls.clientCertificate (not $external.tls.existingSecret) -}}
{{- fail "redis.external.tls.clientCertificate is true, which needs redis.external.tls.existingSecret" -}}
{{- end -}}
{{- end -}}

{{- define "paceline.validateTarget" -}}
{{- $target := .Values.target -}}
{{- $gpus := dig "gpu" "count" .Values.workerDefaults.gpu.count $target | int -}}
{{- if and (gt (int $target.tensorParallelSize) 1) (gt $gpus 1) -}}
{{- fail (printf "target.gpu.count is %d, but each of the %d ranks (target.tensorParallelSize) is a pod of its own; expected 1" $gpus (int $target.tensorParallelSize)) -}}
{{- end -}}
{{- end -}}

{{- define "paceline.validateDraft" -}}
{{- $drafter := include "paceline.drafter" .block -}}
{{- $settings := .block.settings | default dict -}}
{{- $target := .root.Values.target.settings | default dict -}}
{{- if and (eq $drafter "draft-model") (not $settings.model) -}}
{{- fail (printf "%s.settings.model is required by the drafter draft-model" .key) -}}
{{- end -}}
{{- if has $drafter (list "eagle" "medusa" "hybrid") -}}
{{- if not $settings.head -}}
{{- fail (printf "%s.settings.head is required by the drafter %s" .key $drafter) -}}
{{- end -}}
{{- if not (or (eq $settings.head "auto") $target.head $target.feature_layers) -}}
{{- fail (printf "target.settings.head (or feature_layers) is required by the drafter %s of %s, which is fed with the target's hidden states" $drafter .key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
