{{/* Names. */}}
{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "penstock.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.companions" -}}
{{- include "penstock.fullname" . }}-companions
{{- end -}}

{{- define "penstock.picker" -}}
{{- default (printf "%s-picker" (include "penstock.fullname" .)) .Values.picker.service.name -}}
{{- end -}}

{{- define "penstock.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "penstock.companions" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "penstock.envoyServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "penstock.fullname" . }}-envoy
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "penstock.tlsSecret" -}}
{{- default (printf "%s-tls" (include "penstock.fullname" .)) .Values.tls.secretName -}}
{{- end -}}

{{/*
The start of the names of objects in a namespace; a list of the root and the namespace. In a namespace of others it has the release's
namespace, because releases of the same name in several namespaces may discover there.
*/}}
{{- define "penstock.nameIn" -}}
{{- $root := index . 0 -}}
{{- if ne (index . 1) $root.Release.Namespace -}}{{ $root.Release.Namespace }}-{{- end -}}
{{- include "penstock.fullname" $root -}}
{{- end -}}

{{/* Labels. The argument is a list of the root and the component. */}}
{{- define "penstock.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "penstock.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "penstock.labels" -}}
{{- $root := index . 0 -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of an object. Those of pods have no common labels: podLabels are for them, and a new label would restart all pods. */}}
{{- define "penstock.objectLabels" -}}
{{- $root := index . 0 -}}
{{ include "penstock.labels" . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.image" -}}
{{- $image := .Values.companion.image -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}

{{/* The configuration as given. */}}
{{- define "penstock.givenConfig" -}}
{{- $read := .Values.config -}}
{{- if kindIs "string" $read -}}
{{- $read = fromYaml $read -}}
{{- if hasKey $read "Error" -}}{{- fail (printf "config is no YAML: %s" (get $read "Error")) -}}{{- end -}}
{{- end -}}
{{- if not (get (default dict $read) "pools") -}}{{- fail "config has no pools" -}}{{- end -}}
{{- toYaml $read -}}
{{- end -}}

{{/* The configuration with what follows from the deployment. What is given wins. */}}
{{- define "penstock.config" -}}
{{- $given := include "penstock.givenConfig" . | fromYaml -}}
{{- $added := dict
    "listen" (dict "grpc" "0.0.0.0:9190" "http" "0.0.0.0:9191")
    "tls" (dict "cert" "/etc/penstock/tls/tls.crt" "key" "/etc/penstock/tls/tls.key" "client_ca" "/etc/penstock/tls/ca.crt")
    "shutdown" (dict "queued" "hand_over") -}}
{{- if eq .Values.mode "envoy" -}}
{{- $_ := set $added.listen "gateway" "0.0.0.0:8080" -}}
{{- if .Values.envoy.tls.secretName -}}
{{- $_ := set $added.listen "tls" (dict "cert" "/etc/penstock/gateway-tls/tls.crt" "key" "/etc/penstock/gateway-tls/tls.key") -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.mode "picker" -}}
{{- $_ := set $added "picker" (dict "listen" "0.0.0.0:9002" "tls" "auto" "health" "0.0.0.0:9003") -}}
{{- /* There are no filters that could list requests. */ -}}
{{- $_ := set $added "startup_wait" "1ms" -}}
{{- end -}}
{{- if gt (int .Values.companion.replicas) 1 -}}
{{- $companions := dict "name" (printf "%s.%s.svc" (include "penstock.companions" .) .Release.Namespace) "port" 9190 -}}
{{- $lease := dict "namespace" .Release.Namespace "name" (include "penstock.fullname" .) -}}
{{- $replicas := dict -}}
{{- if not (dig "replicas" "companions" "" $given) -}}{{- $_ := set $replicas "companions" (dict "dns" $companions) -}}{{- end -}}
{{- if not (dig "replicas" "lease" "" $given) -}}{{- $_ := set $replicas "lease" (dict "kubernetes" $lease) -}}{{- end -}}
{{- $_ := set $added "replicas" $replicas -}}
{{- end -}}
{{- /* Without these names, a request to the Service would be rejected for its Host. */ -}}
{{- $service := include "penstock.companions" . -}}
{{- $hosts := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) -}}
{{- $_ := set $added "admin" (dict) -}}
{{- if .Values.companion.adminToken.secretName -}}
{{- $_ := set $added.admin "token_file" (printf "/etc/penstock/admin/%s" .Values.companion.adminToken.key) -}}
{{- end -}}
{{- $identity := dict -}}
{{- if not (dig "identity" "trust" "" $given) -}}
{{- $_ := set $identity "trust" "none" -}}
{{- end -}}
{{- if .Values.apiKeys.secretName -}}
{{- $_ := set $identity "api_keys" (dict "file" (printf "/etc/penstock/api-keys/%s" .Values.apiKeys.key)) -}}
{{- end -}}
{{- $_ := set $added "identity" $identity -}}
{{- $config := mustMergeOverwrite $added $given -}}
{{- $_ := set $config.admin "hosts" (concat (default list $config.admin.hosts) $hosts | uniq) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The part of the configuration that a running companion can't change. */}}
{{- define "penstock.fixedConfig" -}}
{{- $config := include "penstock.config" . | fromYaml -}}
{{- toYaml (pick $config "listen" "tls" "replicas" "picker") -}}
{{- end -}}

{{/*
The ports of the endpoint picker, as YAML: by name, that of all pools and those of one each, and that of health checks. By the start of the
names, Istio knows the protocol.
*/}}
{{- define "penstock.pickerPorts" -}}
{{- $config := include "penstock.config" . | fromYaml -}}
{{- $ports := dict "grpc-picker" (include "penstock.port" $config.picker.listen | int) -}}
{{- range $config.pools -}}
{{- with .picker_port -}}{{- $_ := set $ports (printf "grpc-%d" (int .)) (int .) -}}{{- end -}}
{{- end -}}
health: {{ include "penstock.port" (required "config.picker.health is needed for the probe" $config.picker.health) }}
ports: {{ toJson $ports }}
{{- end -}}

{{/* The part of the configuration that is in Envoy's bootstrap. All other parts reach a running Envoy. */}}
{{- define "penstock.bootstrapConfig" -}}
{{- $config := include "penstock.config" . | fromYaml -}}
{{- toYaml (pick $config "listen" "tls" "replicas" "limits") -}}
{{- end -}}

{{/* The port of an address. */}}
{{- define "penstock.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* The ports of the configuration's listeners, as YAML. */}}
{{- define "penstock.ports" -}}
{{- $listen := (include "penstock.config" . | fromYaml).listen -}}
host: {{ regexReplaceAll ":[0-9]+$" $listen.http "" | quote }}
grpc: {{ include "penstock.port" $listen.grpc }}
http: {{ include "penstock.port" $listen.http }}
gateway: {{ include "penstock.port" (default ":8080" $listen.gateway) }}
admin: {{ include "penstock.port" (default ":9901" $listen.envoy_admin) }}
{{- end -}}

{{/* The port of the Service for clients. */}}
{{- define "penstock.servicePort" -}}
{{- default (ternary 443 80 (ne .Values.envoy.tls.secretName "")) .Values.envoy.service.port -}}
{{- end -}}

{{/* The namespaces in which pools are discovered, with the kinds of discovery, as YAML. */}}
{{- define "penstock.discovery" -}}
{{- $root := . -}}
{{- $found := dict -}}
{{- range (include "penstock.config" . | fromYaml).pools -}}
{{- with dig "endpoints" "kubernetes" nil . -}}
{{- $namespace := default $root.Release.Namespace .namespace -}}
{{- $kinds := get $found $namespace | default dict -}}
{{- if .inference_pool -}}{{- $_ := set $kinds "inferencePool" true -}}{{- end -}}
{{- if .objectives -}}{{- $_ := set $kinds "objectives" true -}}{{- end -}}
{{- if .rewrites -}}{{- $_ := set $kinds "rewrites" true -}}{{- end -}}
{{- if .service -}}{{- $_ := set $kinds "service" true -}}{{- end -}}
{{- $_ := set $found $namespace $kinds -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Whether the companion uses the API server: for the lease, for discovery. */}}
{{- define "penstock.usesApi" -}}
{{- $config := include "penstock.config" . | fromYaml -}}
{{- if or (include "penstock.discovery" . | fromYaml) (dig "replicas" "lease" "kubernetes" "" $config) -}}true{{- end -}}
{{- end -}}

{{/* A quantity of memory in bytes: 2Gi, 2GiB, 500M. Empty: it has another form. */}}
{{- define "penstock.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := toString . | replace " " "" | trimSuffix "B" -}}
{{- if regexMatch "^[0-9]+(\\.[0-9]+)?(k|[KMGT]i|[MGT])?$" $text -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[a-zA-Z]*$" $text)) | int64 -}}
{{- end -}}
{{- end -}}

{{/*
The default constraint on the nodes of pods; a list of the root and the component. Only pods of one ReplicaSet are compared: otherwise those
that an update replaces would push the new ones together.
*/}}
{{- define "penstock.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {{ include "penstock.selector" . | fromYaml | toJson }}}
  matchLabelKeys: [pod-template-hash]
{{- end -}}

{{/* Which companion this pod's is, and for Envoy any address that the configuration accepts. */}}
{{- define "penstock.environment" -}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: PENSTOCK_LOG, value: {{ .Values.companion.log | quote }}}
- {name: PENSTOCK_LOG_FORMAT, value: {{ .Values.companion.logFormat | quote }}}
{{- if gt (int .Values.companion.replicas) 1 }}
- {name: PENSTOCK_REPLICAS__ADVERTISE, value: {{ .Values.companion.advertise | quote }}}
{{- end }}
{{- with .Values.companion.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
