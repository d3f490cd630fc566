#!/usr/bin/env bash
# Checks what is below deploy/ with the tools that are there, and says SKIPPED for those that are not.
#
#     scripts/check-deploy.sh
#
# Real tools: promtool (Debian: prometheus), systemd-analyze (systemd), helm, kustomize or kubectl (kubernetes-client),
# docker with compose, unshare with a network of its own. Python 3, and for some of it the modules yaml and jsonschema. The
# router: $WARMPATH_BINARY, or that of target/debug or target/release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has() { command -v "$1" >/dev/null 2>&1; }
skip() { printf 'SKIPPED: %s\n' "$*"; }
step() { printf -- '-- %s\n' "$*"; }

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

binary=""
# Runs a check that may find that it lacks something: then it ends with 3, and names it in its last line.
lacking() {
    local what="$1" said status=0
    shift
    said="$("$@")" || status=$?
    case "$status" in
    0) echo "$said" ;;
    3) skip "$what $(tail -n 1 <<<"$said")" ;;
    *) exit 1 ;;
    esac
}

for binary in ${WARMPATH_BINARY:-} target/debug/warmpath target/release/warmpath ""; do
    [ -x "$binary" ] && break
done

step "dashboard"
python3 scripts/deploy/dashboard.py --check

step "metrics, alerts, tests and runbook name each other"
python3 scripts/deploy/metrics-exist.py

step "YAML and JSON"
lacking "not installed: Python's module" python3 scripts/deploy/parse.py

step "alert rules, the dashboard's queries, and the configuration of the trial's Prometheus"
if has promtool; then
    promtool check config --syntax-only deploy/compose/prometheus.yaml
    promtool check rules deploy/prometheus/alerts.yaml
    python3 scripts/deploy/dashboard.py --rules >"$folder/dashboard.yaml"
    promtool check rules "$folder/dashboard.yaml"
    cp scripts/deploy/dashboard_test.yaml "$folder"
    promtool test rules "$folder/dashboard_test.yaml"
    promtool test rules deploy/prometheus/alerts_test.yaml
else
    skip "promtool is not installed"
fi

step "a router's own metrics"
if [ -n "$binary" ]; then
    python3 scripts/deploy/metrics-of.py "$binary" >"$folder/metrics.txt"
    python3 scripts/deploy/metrics-exist.py "$folder/metrics.txt"
    if has promtool; then
        promtool check metrics <"$folder/metrics.txt"
    else
        skip "promtool is not installed"
    fi
else
    skip "the router is not built"
fi

step "configurations that are shipped"
if [ -n "$binary" ]; then
    export WARMPATH_ADMIN_TOKEN=any
    "$binary" check deploy/compose/warmpath.yaml
    WARMPATH__LISTEN__DATA=0.0.0.0:8080 WARMPATH__LISTEN__ADMIN=0.0.0.0:9090 WARMPATH__LISTEN__ADMIN_TOKEN=any \
        "$binary" check deploy/kustomize/base/warmpath.yaml
else
    skip "the router is not built"
fi

step "Dockerfile: a static program that finds names, and nobody's rights"
grep -q '^FROM gcr.io/distroless/static-[a-z0-9]*:nonroot$' docker/Dockerfile
grep -qE '^USER [1-9][0-9]*:[1-9][0-9]*$' docker/Dockerfile
lacking "what a static program finds, without" python3 scripts/deploy/static-names.py

step "systemd unit"
if has systemd-analyze; then
    # The program is not installed here, so another one stands for it.
    sed "s#=/usr/local/bin/warmpath#=$(command -v true)#" deploy/systemd/warmpath.service >"$folder/warmpath.service"
    systemd-analyze verify --man=no "$folder/warmpath.service"
else
    skip "systemd-analyze is not installed"
fi

step "compose file"
if has docker && docker compose version >/dev/null 2>&1; then
    docker compose -f deploy/docker-compose.yaml config --quiet
else
    skip "docker compose is not installed"
fi

step "Helm chart"
if has helm; then
    helm lint deploy/helm/warmpath
    helm template trial deploy/helm/warmpath --set serviceMonitor.enabled=true,networkPolicy.enabled=true >"$folder/chart.yaml"
    helm template trial deploy/helm/warmpath --set config.discovery.dns=null,config.discovery.kubernetes.service=vllm \
        >"$folder/watching.yaml"
    helm template trial deploy/helm/warmpath --set-json 'extraVolumes=[{"name":"models","emptyDir":{}}]' \
        --set-json 'extraVolumeMounts=[{"name":"models","mountPath":"/models"}]' \
        --set-json 'lifecycle={"preStop":{"sleep":{"seconds":5}}}' >"$folder/mounted.yaml"
    grep -q 'mountPath: /models' "$folder/mounted.yaml" && grep -q 'seconds: 5' "$folder/mounted.yaml"
    grep -q 'resources: \[endpointslices\], verbs: \[get, list, watch\]' "$folder/watching.yaml"
    if grep -q endpointslices "$folder/chart.yaml"; then
        echo "the chart asks for rights that nobody needs" >&2
        exit 1
    fi
else
    skip "helm is not installed"
fi

step "kustomize base"
if has kustomize; then
    kustomize build deploy/kustomize/base >"$folder/base.yaml"
elif has kubectl; then
    kubectl kustomize deploy/kustomize/base >"$folder/base.yaml"
else
    skip "neither kustomize nor kubectl is installed"
fi
