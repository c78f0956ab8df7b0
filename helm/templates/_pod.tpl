{{/* The pod of any workload. Takes (dict "root" $ "workload" w), of one in a group of ranks also "group":
(dict "labels" "env"), which are added. */}}

{{/* How long a Service may go on sending here after a pod was told to stop. Workers need none: the
coordinator learns from themselves that they drain. */}}
{{- define "paceline.preStopSeconds" -}}
{{- ternary 5 0 (eq .role "coordinator") -}}
{{- end -}}

{{/* Until the kubelet kills: what comes before the drain, the drain, and the end of the process. */}}
{{- define "paceline.graceSeconds" -}}
{{- add (include "paceline.preStopSeconds" . | int) (ceil .block.drainSeconds | int) 10 -}}
{{- end -}}

{{- define "paceline.podTemplate" -}}
{{- $root := .root -}}
{{- $workload := .workload -}}
{{- $block := $workload.block -}}
metadata:
  labels:
    {{- include "paceline.selector" . | nindent 4 }}
    app.kubernetes.io/part-of: paceline
    {{- with (.group | default dict).labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $block.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with mergeOverwrite (include "paceline.scrapeAnnotations" . | fromYaml) $block.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "paceline.serviceAccount" . | quote }}
  automountServiceAccountToken: {{ eq $workload.role "coordinator" }}
  # Names of services become variables otherwise, PACELINE_… among them, which are no settings.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "paceline.graceSeconds" $workload }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml $block.podSecurityContext | nindent 4 }}
  {{- with include "paceline.scheduling" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $block.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $workload.role }}
      {{- include "paceline.container" . | nindent 6 }}
    {{- with $block.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "paceline.volumes" . | nindent 4 }}
{{- end -}}

{{- define "paceline.container" -}}
{{- $workload := .workload -}}
{{- $block := $workload.block -}}
image: {{ include "paceline.image" . | quote }}
imagePullPolicy: {{ $block.image.pullPolicy | default .root.Values.image.pullPolicy }}
command:
  {{- toYaml $workload.command | nindent 2 }}
{{- with $block.extraArgs }}
args:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $env := include "paceline.lastOf" (list (include "paceline.telemetryEnv" . | fromJson) (dig "env" dict (.group | default dict)) $workload.env) | fromJson -}}
{{- with include "paceline.env" $env | trim }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- with $block.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- range $name, $port := $workload.ports }}
  - name: {{ $name }}
    containerPort: {{ $port }}
    protocol: TCP
  {{- end }}
{{- include "paceline.probes" . | nindent 0 }}
resources:
  {{- include "paceline.resources" . | nindent 2 }}
securityContext:
  {{- toYaml $block.securityContext | nindent 2 }}
volumeMounts:
  {{- include "paceline.mounts" . | nindent 2 }}
{{- end -}}

{{/* Health has a port of its own, without TLS, so that probes are the same with and without it. The
service "" is alive from the start to the end; the named one is ready, and no more once it drains. */}}
{{- define "paceline.probes" -}}
{{- $workload := .workload -}}
{{- $startup := $workload.block.startupSeconds | int -}}
{{- if $workload.health -}}
startupProbe:
  grpc: {port: {{ $workload.ports.health }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ max 1 (div (add $startup 1) 2) }}
livenessProbe:
  grpc: {port: {{ $workload.ports.health }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  grpc: {port: {{ $workload.ports.health }}, service: {{ $workload.health }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- else -}}
startupProbe:
  tcpSocket: {port: redis}
  periodSeconds: 2
  failureThreshold: {{ max 1 (div (add $startup 1) 2) }}
livenessProbe:
  tcpSocket: {port: redis}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  tcpSocket: {port: redis}
  periodSeconds: 2
{{- end }}
{{- with include "paceline.preStopSeconds" $workload | int }}
lifecycle:
  preStop:
    {{- if semverCompare ">=1.30.0-0" $.root.Capabilities.KubeVersion.Version }}
    sleep: {seconds: {{ . }}}
    {{- else }}
    # 1.29 has no `sleep` yet.
    exec: {command: [python, -c, "import time; time.sleep({{ . }})"]}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "paceline.resources" -}}
{{- $resources := deepCopy .workload.block.resources -}}
{{- $gpu := .workload.block.gpu | default (dict "count" 0) -}}
{{- if gt (int $gpu.count) 0 -}}
{{- $resources = mergeOverwrite $resources (dict "limits" (dict $gpu.resource (int $gpu.count))) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
