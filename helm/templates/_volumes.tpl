{{/* What pods have on disk: the root is read-only. Takes (dict "root" $ "workload" w). */}}
{{- define "paceline.volumes" -}}
{{- $block := .workload.block -}}
- name: tmp
  emptyDir: {}
{{- with $block.sharedMemory }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . }}}
{{- end }}
{{- with $block.cache }}
- name: cache
  {{- if .existingClaim }}
  persistentVolumeClaim: {claimName: {{ .existingClaim | quote }}}
  {{- else if .claim.size }}
  persistentVolumeClaim: {claimName: {{ $.workload.name }}-cache}
  {{- else if .sizeLimit }}
  emptyDir: {sizeLimit: {{ .sizeLimit }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- range .workload.files }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    items:
      {{- toYaml .items | nindent 6 }}
{{- end }}
{{- with $block.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "paceline.mounts" -}}
{{- $block := .workload.block -}}
- name: tmp
  mountPath: /tmp
{{- if $block.sharedMemory }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- if $block.cache }}
- name: cache
  mountPath: /var/cache/paceline
{{- end }}
{{- range .workload.files }}
- name: {{ .name }}
  mountPath: /etc/paceline/{{ .name }}
  readOnly: true
{{- end }}
{{- with $block.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
