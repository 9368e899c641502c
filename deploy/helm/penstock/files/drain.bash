# Before Envoy ends: closes idle connections, and waits until no request runs.
# Arguments: the port of Envoy's admin interface, and the least and the most seconds.
set -u

# admin METHOD PATH: prints Envoy's response.
admin() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return
    printf '%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
    cat <&3
    exec 3>&-
}

port=$1
ends=$((SECONDS + $3))
# A Service or a load balancer needs a moment to stop sending connections here.
least=$((SECONDS + $2))
# Responses ask clients to close their connections; new ones are still served.
admin POST /healthcheck/fail >/dev/null || exit 0
while ((SECONDS < ends)); do
    page=$(admin GET '/stats?filter=%5Ehttp.penstock.downstream_rq_active%24') || exit 0
    if ((SECONDS >= least)) && [[ $page == *'downstream_rq_active: 0'* ]]; then
        exit 0
    fi
    sleep 1
done
