//! What a configuration says well, and `serve` would refuse, could not use, or serves with less than was meant.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use warmpath_core::policy::PolicyName;

use crate::config::{Config, ConfigError, EventSource, Fault, Nats, Reading, Tls as TlsConfig, TokenizerSource};
use crate::door::{Tls, TlsFiles};
use crate::error::chain;
use crate::fleet::discovery::registration::REFRESH;
use crate::link;
use crate::replay::record;
use crate::telemetry::metrics::DoorMetrics;
use crate::tokenize::hf::{self, LoadError, TokenizerFiles};

/// All of it, each at the place of its key; those of the file called `name` in its order.
pub(super) fn warnings(config: &Config, reading: &Reading, name: &str) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut warn = |key: &str, message: String| found.push(reading.at(name, key, &message));
    files(config, &mut warn);
    tokenizers(config, &mut warn);
    certificates(config, &mut warn);
    twins(config, &mut warn);
    unserved(config, &mut warn);
    nowhere(config, &mut warn);
    leases(config, &mut warn);
    knowledge(config, &mut warn);
    openness(config, &mut warn);
    found.sort_by(|a, b| a.place.cmp(&b.place));
    found
}

/// Files that are read, and those that are written.
fn files(config: &Config, warn: &mut impl FnMut(&str, String)) {
    let key = "discovery.file.path";
    match config.discovery.file.path.as_deref().map(|path| config.load_workers(path)) {
        Some(Err(ConfigError::Faulty(faults))) => faults.iter().for_each(|fault| warn(key, fault.to_string())),
        Some(Err(ConfigError::Unreadable { path, why })) => {
            warn(key, format!("cannot read `{}`: {why}", path.display()));
        }
        Some(Ok(_)) | None => {}
    }
    let mut read = |key: &str, path: &Path| {
        if let Err(why) = readable(path) {
            warn(key, format!("cannot read `{}`: {why}", path.display()));
        }
    };
    for (at, model) in config.models.iter().enumerate() {
        if let Some(path) = &model.chat_template {
            read(&format!("models.{at}.chat_template"), path);
        }
    }
    let Nats { tls_authorities, tls_certificate, tls_key, .. } = &config.events.nats;
    let of_nats = [
        ("tls_authorities", tls_authorities.as_ref()),
        ("tls_certificate", tls_certificate.as_ref().map(|path| &path.value)),
        ("tls_key", tls_key.as_ref().map(|path| &path.value)),
    ];
    for (key, path) in of_nats.into_iter().filter_map(|(key, path)| Some((key, path?))) {
        read(&format!("events.nats.{key}"), path);
    }
    let lies_below_a_file =
        |path: &Path| path.ancestors().skip(1).find(|above| above.exists()).is_some_and(|it| !it.is_dir());
    if let Some(path) = config.record.as_deref().filter(|path| path.is_dir() || lies_below_a_file(path)) {
        warn("record", format!("`{}` cannot be written: it is a folder, or lies below a file", path.display()));
    }
    if let Some(path) = config.record.as_deref().filter(|path| path.is_file()) {
        match record::refusal(path) {
            Ok(None) => {}
            Ok(Some(why)) => warn("record", format!("`{}` cannot be written: {why}", path.display())),
            Err(error) => warn("record", format!("`{}` cannot be read: {error}", path.display())),
        }
    }
    let is_file = |path: &Path| path.exists() && !path.is_dir();
    if let Some(path) = config.index.snapshots.as_deref().filter(|path| is_file(path) || lies_below_a_file(path)) {
        warn("index.snapshots", format!("`{}` cannot be a folder: it is a file, or lies below one", path.display()));
    }
}

/// Tokenizers and chat templates that `serve` could not load.
fn tokenizers(config: &Config, warn: &mut impl FnMut(&str, String)) {
    for (at, model) in config.models.iter().enumerate() {
        let Some(TokenizerSource::File(tokenizer)) = &model.tokenizer else { continue };
        let files = TokenizerFiles {
            tokenizer: tokenizer.clone(),
            // Of one that cannot be read it is said already.
            chat_template: model.chat_template.clone().filter(|path| readable(path).is_ok()),
            chat_template_kwargs: None,
            model_tokens_max: None,
            check_every: None,
        };
        let Err(error) = hf::check(&files) else { continue };
        let is_given = matches!(error, LoadError::Template(_)) && files.chat_template.is_some();
        let key = if is_given { "chat_template" } else { "tokenizer" };
        warn(&format!("models.{at}.{key}"), chain(&error));
    }
}

fn readable(path: &Path) -> std::io::Result<()> {
    let is_folder = File::open(path)?.metadata()?.is_dir();
    if is_folder { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
}

/// Certificates that cannot be used, as `serve` finds out, or that clients do not take now.
fn certificates(config: &Config, warn: &mut impl FnMut(&str, String)) {
    for (key, tls) in [("listen.data_tls", &config.listen.data_tls), ("listen.admin_tls", &config.listen.admin_tls)] {
        let TlsConfig { certificate: Some(certificate), key: Some(private), client_authorities } = tls else {
            continue;
        };
        let files = TlsFiles {
            certificate: certificate.value.clone(),
            key: private.value.clone(),
            client_authorities: client_authorities.as_ref().map(|path| path.value.clone()),
        };
        let complaints = match Tls::load(files, DoorMetrics::default()) {
            Ok(tls) => tls.complaints(),
            Err(error) => vec![error.to_string()],
        };
        complaints.into_iter().for_each(|complaint| warn(&format!("{key}.certificate"), complaint));
    }
    let ours = &config.upstream_tls;
    let path = |path: &crate::config::Spanned<std::path::PathBuf>| path.value.clone();
    let files = link::TlsFiles {
        authorities: ours.authorities.clone(),
        identity: ours.certificate.as_ref().map(path).zip(ours.key.as_ref().map(path)),
    };
    let key = if files.authorities.is_some() { "upstream_tls.authorities" } else { "upstream_tls.certificate" };
    if let Err(error) = link::ClientTls::load(files) {
        warn(key, error.to_string());
    }
}

/// Workers at one address are the same engine: each would know half of its load. Only ranks may share one.
fn twins(config: &Config, warn: &mut impl FnMut(&str, String)) {
    for (at, worker) in config.workers.iter().enumerate() {
        if let Some(first) = config.workers[..at].iter().find(|other| worker.is_engine_of(other)) {
            let url = &worker.url.value;
            let first = &first.id.value;
            warn(
                &format!("workers.{at}.url"),
                format!(
                    "{url} is that of `{first}`, too: what one of them is sent, the load of the other does not show"
                ),
            );
        }
    }
}

/// Models that nobody serves, where nobody can come: the router is not ready for as long as there is one.
fn unserved(config: &Config, warn: &mut impl FnMut(&str, String)) {
    let served = |name: &str| config.workers.iter().any(|worker| &*worker.model.value == name);
    for (at, model) in config.models.iter().enumerate() {
        if !config.discovery.is_used() && !served(&model.name) {
            let name = &*model.name;
            warn(
                &format!("models.{at}.name"),
                format!("no worker serves `{name}`: its requests are answered with 503, and `/readyz` never says yes"),
            );
        }
    }
}

/// Events of engines inside the process, of which `serve` has none.
fn nowhere(config: &Config, warn: &mut impl FnMut(&str, String)) {
    for (at, worker) in config.workers.iter().enumerate() {
        if config.event_source(worker) == EventSource::Local {
            warn(&format!("workers.{at}.events"), NO_ENGINE.to_owned());
        }
    }
    let (dns, kubernetes) = (&config.discovery.dns.events, &config.discovery.kubernetes.events);
    for (section, events) in [("dns", dns), ("kubernetes", kubernetes)] {
        if events.as_ref().is_some_and(|events| events.value == EventSource::Local) {
            warn(&format!("discovery.{section}.events"), NO_ENGINE.to_owned());
        }
    }
}

const NO_ENGINE: &str = "`serve` has no engine inside its process, and refuses `local`: use `zmq`, `nats` or `none`";

/// Leases that end before who holds them is heard of again.
fn leases(config: &Config, warn: &mut impl FnMut(&str, String)) {
    let nats = &config.discovery.nats;
    let least = REFRESH * 2;
    if *nats.enabled && nats.lease.get() < least {
        let why = format!("workers are heard of every {:?}: with less than {least:?} they come and go", REFRESH);
        warn("discovery.nats.lease", why);
    }
}

/// Policies that go by what caches hold, where nobody says it.
fn knowledge(config: &Config, warn: &mut impl FnMut(&str, String)) {
    let policy = config.routing.policy;
    if !goes_by_events(policy) {
        return;
    }
    for (at, model) in config.models.iter().enumerate().filter(|(_, model)| model.tokenizer.is_none()) {
        let name = &*model.name;
        warn(
            &format!("models.{at}.name"),
            format!(
                "`{policy}` goes by token ids, and `{name}` has no `tokenizer`: its text prompts are routed by load"
            ),
        );
    }
    for (at, worker) in config.workers.iter().enumerate() {
        if config.event_source(worker) == EventSource::None {
            let id = &worker.id.value;
            warn(
                &format!("workers.{at}.id"),
                format!(
                    "`{policy}` goes by what caches hold, and nobody tells it of `{id}`: it has no source of events"
                ),
            );
        }
    }
}

fn goes_by_events(policy: PolicyName) -> bool {
    use PolicyName::{ApproxLru, ApproxTree, Chwbl, LeastRequests, PowerOfTwo, Random, RoundRobin};
    !matches!(policy, ApproxLru | ApproxTree | Chwbl | LeastRequests | PowerOfTwo | Random | RoundRobin)
}

/// Ports that others on the network reach and that ask nobody who he is. The admin port may not be one.
fn openness(config: &Config, warn: &mut impl FnMut(&str, String)) {
    let listen = &config.listen;
    let is_open = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    if is_open(listen.data.value) && listen.data_tls.client_authorities.is_none() {
        warn(
            "listen.data",
            format!(
                "{} is open to the network, and nothing here asks clients who they are: what stands before it must, \
                 or `listen.data_tls.client_authorities`",
                listen.data.value
            ),
        );
    }
    if is_open(listen.admin.value) && listen.admin_tls.certificate.is_none() {
        warn(
            "listen.admin",
            format!("{} is open to the network without TLS: others on the way read the token", listen.admin.value),
        );
    }
}
