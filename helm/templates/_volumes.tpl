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
  persistentVolumeClaim: {claimName: {{ .existingClaim }}}
  {{- else if .sizeLimit }}
  emptyDir: {sizeLimit: {{ .sizeLimit }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- if eq .workload.role "redis" }}
- name: data
  emptyDir: {}
{{- end }}
{{- range .workload.files }}
{{- if .secret }}
- name: {{ base .path }}
  secret: {secretName: {{ .secret }}}
{{- end }}
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
{{- if eq .workload.role "redis" }}
- name: data
  mountPath: /data
{{- end }}
{{- range .workload.files }}
{{- if .secret }}
- name: {{ base .path }}
  mountPath: {{ .path }}
  readOnly: true
{{- end }}
{{- end }}
{{- with $block.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
