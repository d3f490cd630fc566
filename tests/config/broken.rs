//! Documents that cannot be, and what is said of each.

const NO_MODELS: &str = "1:1: there are no models: nothing could be asked for";
const NO_WORKERS: &str = "1:1: there are no workers: nothing could be answered";

/// Document, then what is said of it, without the file's name.
pub(crate) const BROKEN: &[(&str, &[&str])] = &[
    ("", &[NO_MODELS, NO_WORKERS]),
    (
        "# nothing\n",
        &[
            "2:1: there are no models: nothing could be asked for",
            "2:1: there are no workers: nothing could be answered",
        ],
    ),
    ("workers: []\n", &[NO_MODELS, NO_WORKERS]),
    ("models: []\ndiscovery: {file: {path: workers.yaml}}\n", &[NO_MODELS]),
    ("just text", &["1:1: expected a section with keys, got `just text`"]),
    ("- 1\n", &["1:1: expected a section with keys, got a list"]),
    ("listen: {data: [\n", &["1:16: unclosed bracket '['"]),
    ("listen:\n  data: 1\n   admin: 2\n", &["3:9: mapping values are not allowed in this context"]),
    ("listen: *nowhere\n", &["1:9: alias references unknown anchor"]),
    ("log: {}\n---\nlog: {}\n", &["3:1: a second document begins here: a configuration is one document"]),
    ("log: !include other.yaml\n", &["1:15: unsupported tag `!include`"]),
    ("log: {}\nlog: {}\n", &["2:1: key `log` is given twice", NO_MODELS, NO_WORKERS]),
];

/// The same, below a valid fleet of two lines.
pub(crate) const BROKEN_BELOW_A_FLEET: &[(&str, &[&str])] = &[
    ("events: {nats: {queue_messages: 100}}", &["3:33: must be at least 1024, got 100"]),
    ("engines: {presets: []}", &["3:11: no version of an engine is named: nobody's metrics could be read"]),
    (
        "engines:\n  presets:\n  - {name: a, running: r, waiting: w, usage: u}\n  - {name: a, running: s, waiting: v, usage: t}",
        &["6:5: name of a version `a` is already used at 5:5"],
    ),
    ("routing: {kv: {gamma: -2}}", &["3:23: weight must be finite and at least 0, got -2"]),
    ("routing: {kv: {alpha: 2}}", &["3:23: a share must be from 0 to 1, got 2"]),
    ("routing: {kv: {gamma: 1.7e308}}", &["3:23: weight must be at most 1000000000, got 1.7e308"]),
    ("routing: {kv: {gamma: .inf}}", &["3:23: weight must be finite and at least 0, got inf"]),
    ("routing: {kv: {gamma: .nan}}", &["3:23: weight must be finite and at least 0, got NaN"]),
    ("routing: {logit: {hit: much}}", &["3:24: expected a number, got `much`"]),
    ("routing: {logit: {hit: '2'}}", &["3:24: expected a number, got `2`"]),
    ("routing: {polcy: kv}", &["3:11: unknown key `polcy`, did you mean `policy`?"]),
    ("rooting: {policy: kv}", &["3:1: unknown key `rooting`, did you mean `routing`?"]),
    ("metrics: {colour: red}", &["3:11: unknown key `colour` (known: prefix)"]),
    ("routing: {policy: kvv}", &["3:19: unknown value `kvv`, did you mean `kv`?"]),
    (
        "routing: {policy: fastest}",
        &[
            "3:19: unknown value `fastest` (known: kv, logit, blocks, product, affinity, chwbl, preble, aibrix, predicted, approx_tree, approx_lru, round_robin, random, least_requests, power_of_two)",
        ],
    ),
    (
        "routing: {fallback: logit}",
        &["3:21: unknown value `logit` (known: round_robin, random, least_requests, power_of_two)"],
    ),
    (
        "routing: {fallback: approx_tree}",
        &["3:21: unknown value `approx_tree` (known: round_robin, random, least_requests, power_of_two)"],
    ),
    ("routing: {approx_tree: {cache_threshold: 1.5}}", &["3:42: a share must be from 0 to 1, got 1.5"]),
    ("routing: {approx_tree: {max_tree_size: 0}}", &["3:40: must be at least 1, got 0"]),
    ("routing: {approx_tree: {max_tree_size: 536870913}}", &["3:40: must be at most 536870912, got 536870913"]),
    (
        "routing: {approx_tree: {eviction_interval: 60}}",
        &["3:44: expected a duration such as 250ms, 5s, 2m or 1h, got `60`"],
    ),
    ("routing: {approx_lru: {queue_span: 0}}", &["3:36: must be at least 1, got 0"]),
    ("routing: {blocks: {temperature: -1}}", &["3:33: weight must be finite and at least 0, got -1"]),
    (
        "routing: {blocks: {prefill: 1}}",
        &["3:20: unknown key `prefill` (known: prefill_load_scale, active_request_weight, overlap_decay, temperature)"],
    ),
    ("routing: {affinity: {match_min: 1.5}}", &["3:33: a share must be from 0 to 1, got 1.5"]),
    ("routing: {chwbl: {replication: 5000}}", &["3:32: must be at most 4096, got 5000"]),
    ("routing: {chwbl: {prefix_characters: 0}}", &["3:38: must be at least 1, got 0"]),
    ("routing: {preble: {prefill_ms: .nan}}", &["3:32: weight must be finite and at least 0, got NaN"]),
    ("routing: {aibrix: {deviations: -1}}", &["3:32: weight must be finite and at least 0, got -1"]),
    ("routing: {shadow: [blocks, kv, blocks]}", &["3:19: `blocks` is there twice"]),
    ("routing: {sessions: {field: name}}", &["3:29: unknown value `name` (known: prompt_cache_key, user, none)"]),
    ("routing: {sessions: {sessions_max: 99999999}}", &["3:36: must be at most 16777216, got 99999999"]),
    (
        "routing: {sessions: {header: 'no header'}}",
        &["3:30: expected the name of a header such as x-tenant, got `no header`"],
    ),
    ("routing: {objectives: {high: {ttft: 5}}}", &["3:37: expected a duration such as 250ms, 5s, 2m or 1h, got `5`"]),
    ("routing: {objectives: {urgent: {}}}", &["3:24: unknown key `urgent` (known: high, normal, low)"]),
    ("routing: {approx_lru: {prefix: -1}}", &["3:32: weight must be finite and at least 0, got -1"]),
    ("discovery: {nats: {enabled: true}}", &["3:29: workers register over NATS, but `events.nats.url` is not set"]),
    ("discovery: {nats: {enabled: yes}}", &["3:29: expected true or false, got `yes`"]),
    ("discovery: {dns: {name: w, events: nats}}", &["3:36: `events.nats.url` is not set"]),
    ("discovery: {dns: {name: w, model: mm}}", &["3:35: no model is named `mm` (known: m)"]),
    ("discovery: {dns: {name: w, id: w}}", &["3:32: without `{host}` all workers would have the same id"]),
    (
        "discovery: {dns: {name: w, url: '{host}'}}",
        &["3:33: expected a URL such as http://10.0.0.1:8000, got `10.0.0.1`"],
    ),
    ("discovery: {kubernetes: {service: w, model: mm}}", &["3:45: no model is named `mm` (known: m)"]),
    ("discovery: {kubernetes: {selector: w=1, id: w}}", &["3:45: without `{name}` all workers would have the same id"]),
    (
        "discovery: {kubernetes: {service: w, selector: w=1}}",
        &["3:48: `selector` beside `service` at 3:35: one of them"],
    ),
    (
        "discovery: {kubernetes: {service: W, namespace: a/b}}",
        &[
            "3:35: expected the name of a Service such as vllm, got `W`",
            "3:49: expected the name of a namespace such as default, got `a/b`",
        ],
    ),
    ("discovery: {kubernetes: {selector: \"\"}}", &["3:36: expected a selector such as app=vllm,tier=gpu"]),
    (
        "discovery: {kubernetes: {service: w, port: 70000}}",
        &["3:44: expected a port such as 8000, or the name of one such as http, got `70000`"],
    ),
    ("discovery: {dns: {records: mx}}", &["3:28: unknown value `mx` (known: address, srv)"]),
    (
        "discovery: {file: {path: w.yaml, interval: 0s}}",
        &["3:44: a duration is at least 1ms and at most 168h, got `0s`"],
    ),
    ("health: {ramp_from: 0}", &["3:21: must be at least 1, got 0"]),
    ("routing: {on_all_busy: wait}", &["3:24: unknown value `wait` (known: queue, least_loaded, error)"]),
    ("queue: {requests: 0}", &["3:19: must be at least 1, got 0"]),
    ("queue: {weights: {urgent: 1}}", &["3:19: unknown key `urgent` (known: high, normal, low)"]),
    ("queue: {tenant_header: 'x tenant'}", &["3:24: expected the name of a header such as x-tenant, got `x tenant`"]),
    ("limits: {in_flight: 0}", &["3:21: must be at least 1, got 0"]),
    ("routing: [kv]", &["3:10: expected a section with keys, got a list"]),
    ("limits: {in_flight: -1}", &["3:21: expected a whole number from 1 to 4294967295, got `-1`"]),
    ("routing: {seed: -1}", &["3:17: expected a whole number from 0 to 18446744073709551615, got `-1`"]),
    (
        "routing: {seed: 18446744073709551616}",
        &["3:17: expected a whole number from 0 to 18446744073709551615, got `18446744073709551616`"],
    ),
    (
        "listen: {passthrough: [/v1/embeddings, /v1/*, /sleep]}",
        &[
            "3:40: `/v1/*` would pass /v1/completions through, which is served by Warmpath itself",
            "3:47: `/sleep` would let clients at /sleep, by which an engine is controlled",
        ],
    ),
    ("engines: {adapters: 0}", &["3:21: must be at least 1, got 0"]),
    ("usage: never", &["3:8: unknown value `never` (known: as_asked, always)"]),
    ("log: {level: loud}", &["3:14: unknown value `loud` (known: error, warn, info, debug, trace)"]),
    ("timeouts: {connect: 5}", &["3:21: expected a duration such as 250ms, 5s, 2m or 1h, got `5`"]),
    ("timeouts: {total: 0s}", &["3:19: a duration is at least 1ms and at most 168h, got `0s`"]),
    ("limits: {body_bytes: 16MB}", &["3:22: expected a size such as 512B, 64KiB, 16MiB or 1GiB, got `16MB`"]),
    ("limits: {header_bytes: 4KiB}", &["3:24: must be at least 8KiB, got 4KiB"]),
    ("limits: {connections: 0}", &["3:23: must be at least 1, got 0"]),
    ("listen: {data: localhost}", &["3:16: expected an address such as 127.0.0.1:8080 or [::]:8080, got `localhost`"]),
    (
        "listen: {data: localhost, admin: '0.0.0.0:9090'}",
        &[
            "3:16: expected an address such as 127.0.0.1:8080 or [::]:8080, got `localhost`",
            "3:34: an admin address beyond loopback needs `listen.admin_token`",
        ],
    ),
    ("listen: {routing_headers: on}", &["3:27: expected true or false, got `on`"]),
    ("listen: {admin: '0.0.0.0:9090'}", &["3:17: an admin address beyond loopback needs `listen.admin_token`"]),
    ("listen: {data: 127.0.0.1:9090}", &["3:16: the port is that of `listen.admin`"]),
    ("listen: {data: '0.0.0.0:80', admin: 127.0.0.1:80}", &["3:37: the port is that of `listen.data` at 3:16"]),
    (
        "listen: {data_tls: {certificate: a.pem}, admin_tls: {key: b.key, client_authorities: ca.pem}}",
        &[
            "3:34: `certificate` without `key`",
            "3:59: `key` without `certificate`",
            "3:86: `client_authorities` without `certificate`",
        ],
    ),
    (
        "listen: {admin: '0.0.0.0:9090', admin_tls: {certificate: a, key: b}}",
        &["3:17: an admin address beyond loopback needs `listen.admin_token`"],
    ),
    ("limits: {uri_bytes: 0B}", &["3:21: a size is at least 1B, got `0B`"]),
    ("limits: {connections_per_address: 0}", &["3:35: must be at least 1, got 0"]),
    ("timeouts: {client_idle: 0s}", &["3:25: a duration is at least 1ms and at most 168h, got `0s`"]),
    ("listen: {admin_token: ''}", &["3:23: a secret must not be empty"]),
    (
        "listen: {admin_token: 'abc '}",
        &["3:23: a header's value neither begins nor ends with a blank: it would be lost on the way"],
    ),
    (
        "events: {nats: {url: 'nats://h:99999'}}",
        &["3:22: the url's port is none from 1 to 65535, got `nats://h:99999`"],
    ),
    ("tracing: {otlp: 'http://h:0'}", &["3:17: the url's port is none from 1 to 65535, got `http://h:0`"]),
    (
        "listen: {admin_token: \"two\\nlines\"}",
        &["3:23: a header's value is made of visible ASCII characters and spaces"],
    ),
    (
        "discovery: {dns: {api_key: \"a\\u0001\"}, kubernetes: {api_key: \"a\\rb\"}, nats: {api_key: \"b\\n\"}}",
        &[
            "3:28: a header's value is made of visible ASCII characters and spaces",
            "3:62: a header's value is made of visible ASCII characters and spaces",
            "3:87: a header's value is made of visible ASCII characters and spaces",
        ],
    ),
    ("listen: {admin_token: [a]}", &["3:23: expected text, got a list"]),
    (
        "metrics: {prefix: 9lives}",
        &[
            "3:19: a metrics prefix is a lower-case letter, then letters, digits and underscores, at most 64; got `9lives`",
        ],
    ),
    (
        "events: {nats: {prefix: 'kv.>'}}",
        &["3:25: a subject prefix is letters, digits, `_`, `-` and dots between them, at most 128; got `kv.>`"],
    ),
    ("events: {nats: {user: u}}", &["3:23: `user` without `password`"]),
    ("events: {nats: {password: p}}", &["3:27: `password` without `user`"]),
    (
        "events: {nats: {token: t, nkey_seed: s}}",
        &["3:38: `nkey_seed` beside `token` at 3:24: one way to authenticate"],
    ),
    ("upstream_tls: {certificate: c.pem}", &["3:29: `certificate` without `key`"]),
    ("upstream_tls: {key: k.pem}", &["3:21: `key` without `certificate`"]),
    (
        "tracing: {otlp: 'grpc://a:4317', sample: 2}",
        &[
            "3:17: expected a URL such as http://127.0.0.1:4318, got `grpc://a:4317`",
            "3:42: a share must be from 0 to 1, got 2",
        ],
    ),
    (
        "tracing: {otlp: 'http://a:4318', headers: {'x key': a, host: b, x-key: \"c\\nd\", x-empty: ''}}",
        &[
            "3:44: expected the name of a header such as x-tenant, got `x key`",
            "3:56: `host` is set by Warmpath itself",
            "3:72: a header's value is made of visible ASCII characters and spaces",
            "3:89: a secret must not be empty",
        ],
    ),
    ("tracing: {headers: {x-key: a}}", &["3:20: `headers` without `otlp`: there is nobody to send them to"]),
    ("tracing: {otlp: 'http://a:4318', headers: [a]}", &["3:43: expected a section with keys, got a list"]),
    ("retries: {budget: 1.5}", &["3:19: a share must be from 0 to 1, got 1.5"]),
    ("log: {format: \"a\\nb\"}", &["3:15: unknown value `a\\nb` (known: text, json)"]),
    (
        "log: {format: xml, level: loud}\nretries: {attempts: -1, wait: 1s}\ncache: {}",
        &[
            "3:15: unknown value `xml` (known: text, json)",
            "3:27: unknown value `loud` (known: error, warn, info, debug, trace)",
            "4:21: expected a whole number from 0 to 255, got `-1`",
            "4:25: unknown key `wait` (known: attempts, budget, budget_min, server_errors, suspicion)",
            "5:1: unknown key `cache` (known: listen, models, workers, discovery, routing, queue, events, index, engines, tokenize, upstream_tls, limits, timeouts, health, retries, decisions, metrics, log, tracing, ready_when, usage, record, record_size)",
        ],
    ),
];

/// Whole fleets.
pub(crate) const BROKEN_FLEETS: &[(&str, &[&str])] = &[
    ("workers: [{id: a, url: 'http://a', model: m}]", &["1:43: no model is named `m`"]),
    (
        "models: [{name: m}]\nworkers: [{id: a, url: 'http://a', model: m, api_key: \"ab\\ncd\"}]",
        &["2:55: a header's value is made of visible ASCII characters and spaces"],
    ),
    (
        "models: [{name: llama}]\nworkers: [{id: a, url: 'http://a', model: lama}]",
        &["2:43: no model is named `lama`, did you mean `llama`?"],
    ),
    (
        "models: [{name: m, chat_template_kwargs: '{a: 1}'}]\nworkers: [{id: a, url: 'http://a', model: m}]",
        &["1:42: must be a JSON object such as {\"enable_thinking\": false}"],
    ),
    (
        "models: [{name: m, aliases: [n]}]\nworkers: [{id: a, url: 'http://a', model: n}]",
        &["2:43: `n` is an alias at 1:30: name the model itself, `m`"],
    ),
    (
        "models: [{name: m, aliases: [m, n]}, {name: n}]\nworkers:\n- {id: a, url: 'http://a', model: m}\n- {id: a, url: 'http://b', model: n}",
        &[
            "1:30: alias `m` is already used at 1:17",
            "1:33: alias `n` is already used at 1:45",
            "4:8: worker id `a` is already used at 3:8",
        ],
    ),
    (
        "models: [{name: m}]\nworkers:\n- {id: '', url: 'http://a', model: m, events: nats}\nevents: {hold_batches: 8}",
        &[
            "3:8: worker id must have 1 to 128 bytes and no control characters, got ``",
            "3:47: `events.nats.url` is not set at 4:1",
        ],
    ),
    (
        "models: [{name: m, block_size: 0, tokenizer: ''}]\nworkers:\n- {url: 'ftp://a', id: a, model: m, dp_ranks: 0, role: decode}\n- {id: b, model: m}",
        &[
            "1:32: must be at least 1, got 0",
            "1:46: expected `remote`, `bytes` or the path of a tokenizer.json, got ``",
            "3:9: expected a URL such as http://10.0.0.1:8000, got `ftp://a`",
            "3:47: must be at least 1, got 0",
            "3:56: role `decode` is not served: only `both` is",
            "4:3: key `url` is missing",
        ],
    ),
    (
        "models: [{name: m}]\nworkers:\n- {id: a, url: 'http://a', model: m, dp_ranks: 1025}\ndiscovery: {dns: {id: '{host}', url: 'http://{host}:1', dp_ranks: 65535}}",
        &["3:48: must be at most 1024, got 1025", "4:67: must be at most 1024, got 65535"],
    ),
    (
        "models: [{name: m}]\nworkers: [a, ~]",
        &["2:11: expected a section with keys, got `a`", "2:14: expected a section with keys, got nothing"],
    ),
];
