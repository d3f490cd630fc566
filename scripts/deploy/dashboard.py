#!/usr/bin/env python3
"""Writes deploy/grafana/dashboard.json; with --check, fails if the file is not what would be written; with
--rules, prints its queries as recording rules, so that promtool can parse them and dashboard_test.yaml run them: each is
called panel:TITLE:N, in lower case with underscores, where N counts the panel's queries from 0."""
import json
import pathlib
import re
import sys

FILE = pathlib.Path(__file__).resolve().parents[2] / "deploy/grafana/dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
ALL = '{job=~"$job",instance=~"$instance"'
MODEL = ALL + ',model=~"$model"'
WORKER = ALL + ',worker=~"$worker"'


def rate(metric, by="", labels=ALL, more=""):
    clause = f"sum by ({by})" if by else "sum"
    return f"{clause} (rate(warmpath_{metric}{labels}{more}}}[$__rate_interval]))"


def gauge(metric, labels=ALL, more="", how="sum", by=""):
    clause = f"{how} by ({by})" if by else how
    return f"{clause} (warmpath_{metric}{labels}{more}}})"


def seen(metric, of, by=""):
    """The sum of what every router sees alike, of each of these once."""
    clause = f"sum by ({by})" if by else "sum"
    return f"{clause} ({gauge(metric, WORKER, how='max', by=f'job, {of}')})"


def quantiles(metric, labels=ALL):
    buckets = rate(f"{metric}_bucket", "le", labels)
    return [(f"histogram_quantile({q}, {buckets})", f"p{round(q * 100)}") for q in (0.5, 0.9, 0.99)]


def share(part, whole):
    return f"{part} / {whole}"


def outcomes(words):
    return rate("requests_total", "", ALL, f',outcome=~"{words}"')


# Rows of (title, unit, [(expression, legend)], what it tells).
ROWS = [
    ("Traffic", [
        ("Requests by outcome", "reqps", [(rate("requests_total", "outcome"), "{{outcome}}")], "Requests that ended."),
        ("Requests by model", "reqps", [(rate("requests_total", "model", MODEL), "{{model}}")], ""),
        ("Prompt tokens", "short", [(rate("prompt_tokens_total", "", WORKER), "a second")], "Of the answers that began."),
        ("Connections", "short", [(gauge("client_connections", by="listener"), "{{listener}}")], "Of clients, open now."),
    ]),
    ("Routing", [
        ("Hit rate", "percentunit", [
            (share(rate("cached_tokens_total", "", WORKER, ',source="predicted"'), rate("prompt_tokens_total", "", WORKER)), "predicted"),
            (share(rate("cached_tokens_total", "", WORKER, ',source="reported"'), rate("prompt_tokens_reported_total", "", WORKER)), "reported"),
        ], "Cached over prompt tokens: as the index promised, of the answers that began, and as engines reported, of those that tell it."),
        ("Predictions", "reqps", [(rate("predictions_total", "result", WORKER), "{{result}}")], "Promised against reported."),
        ("Prediction error", "short", [(rate("prediction_error_tokens_total", "direction", WORKER), "{{direction}}")], "Tokens a second."),
        ("Balance", "short", [(gauge("load_balance_score", MODEL, how="max", by="model"), "{{model}}")],
         "Deviation of the workers' loads over their mean. 0 is even."),
        ("Fallbacks and untokenized", "reqps", [
            (rate("fallback_total", "reason"), "fallback: {{reason}}"),
            (rate("untokenized_total", "reason"), "untokenized: {{reason}}"),
        ], "Requests that are routed by load."),
        ("Shadow policies", "reqps", [(rate("shadow_placements_total", "result"), "{{result}}")], "Whether they agree."),
    ]),
    ("Latency", [
        ("Time to first token", "s", quantiles("time_to_first_token_seconds", MODEL), "From the request's arrival."),
        ("Duration", "s", quantiles("request_duration_seconds", MODEL), "From the request's arrival to its end, whatever became of it."),
        ("Routing decision", "s", quantiles("routing_latency_seconds"), "To hash, match, score and reserve."),
    ]),
    ("Workers", [
        ("State", "short", [(seen("worker_state", "worker, state", by="state"), "{{state}}")], "Workers by what they are."),
        ("In flight", "short", [(gauge("in_flight_requests", WORKER, by="worker"), "{{worker}}")], ""),
        ("Load", "percentunit", [
            (f"sum by (worker) ({gauge('kv_load', WORKER, how='avg', by='job, instance, worker')})", "{{worker}}"),
        ], "Blocks in flight over the cache: of all routers together, and of a worker's ranks the mean."),
        ("Hit rate by worker", "percentunit", [(gauge("kv_hit_rate", WORKER, how="avg", by="worker"), "{{worker}}")], "Last five minutes."),
        ("Trust", "percentunit", [(gauge("trust_weight", WORKER, how="min", by="worker"), "{{worker}}")],
         "What a promised block is worth."),
        ("Doubts", "short", [(seen("trust_reason", "worker, reason", by="reason"), "{{reason}}")], "Workers that are doubted, by reason."),
        ("Waiting in engines", "short", [(seen("engine_requests_waiting", "worker, rank", by="worker"), "{{worker}}")], "In all its ranks."),
        ("Engines' cache in use", "percentunit", [(gauge("engine_kv_usage", WORKER, how="max", by="worker"), "{{worker}}")], "In the fullest rank."),
    ]),
    ("Index", [
        ("Blocks", "short", [(seen("index_blocks", "worker, rank", by="worker"), "{{worker}}")], "Of all its ranks, as the router with most of them knows."),
        ("Memory", "bytes", [(gauge("index_bytes", by="instance"), "{{instance}}")], ""),
        ("Full", "short", [
            (rate("index_refused_blocks_total"), "refused"),
            (rate("index_shed_entries_total"), "let go"),
        ], "Blocks a second that are not remembered, or no longer."),
    ]),
    ("Events", [
        ("Events", "short", [(rate("kv_events_total", "outcome", WORKER), "{{outcome}}")], "By what became of them, a second."),
        ("Lag", "s", quantiles("kv_event_lag_seconds", WORKER), "From the engine's time stamp to the index."),
        ("Losses, restarts and repairs", "short", [
            (rate("kv_event_gaps_total", "", WORKER), "losses"),
            (rate("kv_event_restarts_total", "", WORKER), "restarts"),
            (rate("kv_view_repairs_total", "outcome", WORKER), "repair: {{outcome}}"),
        ], "A second."),
        ("Views and bus", "short", [
            (seen("kv_view_suspect", "worker, rank"), "suspect views"),
            (seen("kv_view_cold", "worker, rank"), "cold views"),
            (gauge("event_bus_up", how="min"), "bus"),
        ], "Views of ranks, in any router."),
    ]),
    ("Queue", [
        ("Waiting", "short", [(gauge("queue_length", MODEL, by="class"), "{{class}}")], "Requests, by class."),
        ("Wait", "s", quantiles("queue_wait_seconds", MODEL), "Of those that were admitted after a wait."),
        ("Refused", "reqps", [(rate("queue_refusals_total", "reason", MODEL), "{{reason}}")], ""),
    ]),
    ("Errors", [
        ("By side", "reqps", [
            (outcomes("upstream_error|worker_error|broken|deadline"), "worker"),
            (outcomes("all_busy|no_worker|queue_refused|too_many_in_flight|too_many_connections|no_room|no_descriptors|shutting_down|internal"), "router"),
            (outcomes("bad_request|unknown_model|suspect|tenant_full|client_left|worker_refused"), "client"),
        ], ""),
        ("Retries", "reqps", [(rate("retries_total", "reason"), "{{reason}}")], "Further attempts, by what went wrong with the one before."),
        ("Connections refused", "short", [
            (rate("client_connections_refused_total", "listener, reason"), "{{listener}}: {{reason}}"),
            (rate("accept_failures_total", "listener, reason"), "not accepted: {{reason}}"),
            (rate("tls_handshake_failures_total", "listener, reason"), "handshake: {{reason}}"),
        ], "A second."),
    ]),
    ("Process", [
        ("Configuration", "short", [
            (gauge("config_last_reload_successful", how="min", by="instance"), "{{instance}}: followed"),
            (rate("config_reload_failures_total"), "failures"),
        ], ""),
        ("Keys that wait for a restart", "short", [
            (gauge("config_restart_pending", how="max", by="instance"), "{{instance}}")], "What the file says and the router does not do yet."),
        ("Age of the configuration", "s", [
            (f"time() - {gauge('config_last_reload_success_timestamp_seconds', how='max', by='instance')}", "{{instance}}")], ""),
        ("Tasks begun again", "short", [(rate("task_restarts_total", "task"), "{{task}}")], "After a panic."),
        ("Tokenizer's cache", "percentunit", [(gauge("token_cache_hit_ratio", MODEL, how="avg", by="model"), "{{model}}")],
         "Text that did not have to be encoded."),
        ("Certificates", "s", [
            (f"{gauge('tls_certificate_expiry_timestamp_seconds', how='min', by='instance, listener')} - time()",
             "{{instance}} {{listener}}")], "Time left."),
    ]),
]


def panel(number, at, entry):
    title, unit, targets, description = entry
    return {
        "id": number, "type": "timeseries", "title": title, "description": description, "datasource": SOURCE,
        "gridPos": {"h": 7, "w": 8, **at},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [{"refId": chr(65 + at_), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
                    for at_, (expr, legend) in enumerate(targets)],
    }


def panels():
    built, number, top = [], 1, 0
    for title, entries in ROWS:
        built.append({"id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
                      "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}})
        number, top = number + 1, top + 1
        for at, entry in enumerate(entries):
            built.append(panel(number, {"x": at % 3 * 8, "y": top + at // 3 * 7}, entry))
            number += 1
        top += (len(entries) + 2) // 3 * 7
    return built


def variable(name, query):
    return {"name": name, "label": name, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2, "sort": 1,
            "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def dashboard():
    return {
        "uid": "warmpath", "title": "Warmpath", "tags": ["llm", "routing"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "source", "label": "source", "type": "datasource", "query": "prometheus", "current": {}},
            variable("job", "label_values(warmpath_event_bus_up, job)"),
            variable("instance", 'label_values(warmpath_event_bus_up{job=~"$job"}, instance)'),
            variable("model", 'label_values(warmpath_load_balance_score{job=~"$job"}, model)'),
            variable("worker", 'label_values(warmpath_worker_up{job=~"$job"}, worker)'),
        ]},
        "panels": panels(),
    }


def rules():
    def plain(query):
        return re.sub(r"\$(job|instance|model|worker)\b", ".*", query.replace("$__rate_interval", "5m"))

    def name(title):
        return re.sub("[^a-z]+", "_", title.lower())

    records = [{"record": f"panel:{name(entry['title'])}:{at}", "expr": plain(target["expr"])}
               for entry in panels() for at, target in enumerate(entry.get("targets", []))]
    return json.dumps({"groups": [{"name": "dashboard", "rules": records}]}, indent=1)


def main():
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not FILE.exists() or FILE.read_text() != text:
            sys.exit("deploy/grafana/dashboard.json is not what scripts/deploy/dashboard.py writes: run it")
        print(f"{FILE.name} is up to date")
    elif sys.argv[1:] == ["--rules"]:
        print(rules())
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(text)


if __name__ == "__main__":
    main()
