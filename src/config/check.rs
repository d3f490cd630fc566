//! Rules across fields. A fault stands at one of the places that do not go together and names the other. Rules run on
//! what is left of a faulty document; one that would misread a gap as a fault waits until the gap is filled.

use std::collections::HashMap;

use super::document::{Content, Node};
use super::fault::{Fault, hint};
use super::fleet::EventSource;
use super::place::{Place, Spanned};
use super::{Config, Discovery, Listen, MetricNames, Nats, Tls, Tracing};

/// Slots are numbered in 16 bits.
const SLOTS_MAX: u32 = 65_535;

/// The most bytes of a worker's id or a model's name: they become labels, subjects and lines of logs.
const NAME_BYTES_MAX: usize = 128;

/// Appends what is wrong with `config`, which `root` was decoded to.
pub(super) fn check(config: &Config, root: &Node, faults: &mut Vec<Fault>) {
    if root.is_section_whole("workers") && config.workers.is_empty() && !config.discovery.is_used() {
        let place = root.entry("workers").map_or(&root.place, |entry| &entry.place);
        Rules { root, faults }.fault(place.clone(), "there are no workers: nothing could be answered");
    }
    // Where workers are listed, each is told that its model is not there.
    if root.is_section_whole("models") && config.models.is_empty() && config.workers.is_empty() {
        let place = root.entry("models").map_or(&root.place, |entry| &entry.place);
        Rules { root, faults }.fault(place.clone(), "there are no models: nothing could be asked for");
    }
    check_without_fleet(config, root, faults);
}

/// The same for a document that need not name who answers.
pub(super) fn check_without_fleet(config: &Config, root: &Node, faults: &mut Vec<Fault>) {
    let mut rules = Rules { root, faults };
    rules.listen(&config.listen);
    rules.models(config);
    rules.worker_ids(config);
    if root.is_section_whole("models") {
        rules.workers_have_models(config);
    }
    rules.slots(config);
    if root.is_section_whole("events") {
        rules.events(config);
        rules.nats(&config.events.nats);
        rules.zmq_workers(config);
        rules.zmq_bind(&config.events.zmq);
    }
    if root.is_section_whole("discovery") {
        rules.discovery(config);
        rules.kubernetes(config);
    }
    if root.is_section_whole("upstream_tls") {
        rules.upstream_tls(config);
    }
    if root.is_section_whole("tracing") {
        rules.tracing(&config.tracing);
    }
    if root.is_section_whole("engines") {
        rules.presets(&config.engines.presets);
    }
}

/// The same for a list of workers from elsewhere, which `config` has in the place of its own.
pub(super) fn check_workers(config: &Config, root: &Node, faults: &mut Vec<Fault>) {
    let mut rules = Rules { root, faults };
    rules.worker_ids(config);
    rules.workers_have_models(config);
    rules.slots(config);
    rules.events(config);
    rules.zmq_workers(config);
}

pub(super) struct Rules<'a> {
    root: &'a Node,
    faults: &'a mut Vec<Fault>,
}

impl Rules<'_> {
    pub(super) fn fault(&mut self, place: Place, message: &str) {
        self.faults.push(Fault::new(place, message));
    }

    /// Where `value` was written; the document's beginning for a default.
    pub(super) fn place<T>(&self, value: &Spanned<T>) -> Place {
        value.place.clone().unwrap_or_else(|| self.root.place.clone())
    }

    fn listen(&mut self, listen: &Listen) {
        let section = self.root.entry("listen");
        let whole =
            |keys: &[&str]| section.is_none_or(|section| keys.iter().all(|key| section.node.is_section_whole(key)));
        let guarded = listen.admin_token.is_some() || listen.admin_tls.knows_clients();
        if !listen.admin.ip().is_loopback() && !guarded && whole(&["admin", "admin_token", "admin_tls"]) {
            let place = self.place(&listen.admin);
            self.fault(place, "an admin address beyond loopback needs `listen.admin_token`");
        }
        for (key, tls) in [("data_tls", &listen.data_tls), ("admin_tls", &listen.admin_tls)] {
            if whole(&[key]) {
                self.tls(tls);
            }
        }
        let clash = whole(&["data", "admin"])
            && listen.data.port() != 0
            && listen.data.port() == listen.admin.port()
            && (listen.data.ip() == listen.admin.ip()
                || listen.data.ip().is_unspecified()
                || listen.admin.ip().is_unspecified());
        if clash {
            let (given, other, name) = match (&listen.admin.place, &listen.data.place) {
                (None, Some(_)) => (self.place(&listen.data), None, "listen.admin"),
                (_, other) => (self.place(&listen.admin), other.clone(), "listen.data"),
            };
            let other = other.map_or_else(String::new, |place| format!(" at {}", place.seen_from(&given)));
            self.fault(given, &format!("the port is that of `{name}`{other}"));
        }
    }

    fn tls(&mut self, tls: &Tls) {
        match (&tls.certificate, &tls.key) {
            (Some(certificate), None) => self.fault(self.place(certificate), "`certificate` without `key`"),
            (None, Some(key)) => self.fault(self.place(key), "`key` without `certificate`"),
            _ => {}
        }
        if let (Some(authorities), None) = (&tls.client_authorities, &tls.certificate) {
            self.fault(self.place(authorities), "`client_authorities` without `certificate`");
        }
    }

    fn models(&mut self, config: &Config) {
        let mut taken: HashMap<&str, Place> = HashMap::new();
        let names = config.models.iter().map(|model| (&model.name, "model name"));
        let aliases = config.models.iter().flat_map(|model| &model.aliases).map(|alias| (alias, "alias"));
        for (name, what) in names.chain(aliases) {
            self.name(name, name, what);
            self.unique(&mut taken, name, name, what);
        }
    }

    fn worker_ids(&mut self, config: &Config) {
        let mut taken: HashMap<&str, Place> = HashMap::new();
        for worker in &config.workers {
            self.name(&worker.id, worker.id.as_str(), "worker id");
            self.unique(&mut taken, &worker.id, worker.id.as_str(), "worker id");
        }
    }

    fn name<T>(&mut self, at: &Spanned<T>, name: &str, what: &str) {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let place = self.place(at);
            self.fault(
                place,
                &format!("{what} must have 1 to {NAME_BYTES_MAX} bytes and no control characters, got `{name}`"),
            );
        }
    }

    fn unique<'n, T>(&mut self, taken: &mut HashMap<&'n str, Place>, at: &Spanned<T>, name: &'n str, what: &str) {
        self.unique_at(taken, self.place(at), name, what);
    }

    fn unique_at<'n>(&mut self, taken: &mut HashMap<&'n str, Place>, place: Place, name: &'n str, what: &str) {
        match taken.get(name) {
            Some(first) => {
                let message = format!("{what} `{name}` is already used at {}", first.seen_from(&place));
                self.fault(place, &message);
            }
            None => {
                taken.insert(name, place);
            }
        }
    }

    fn workers_have_models(&mut self, config: &Config) {
        let names: Vec<&str> = config.models.iter().map(|model| model.name.as_str()).collect();
        for worker in config.workers.iter().filter(|worker| !names.contains(&worker.model.as_str())) {
            let asked = worker.model.as_str();
            let place = self.place(&worker.model);
            let alias = config.models.iter().find_map(|model| {
                let alias = model.aliases.iter().find(|alias| alias.as_str() == asked)?;
                Some((model.name.as_str(), self.place(alias)))
            });
            let message = match alias {
                Some((name, at)) => {
                    format!("`{asked}` is an alias at {}: name the model itself, `{name}`", at.seen_from(&place))
                }
                None => format!("no model is named `{asked}`{}", hint(asked, &names)),
            };
            self.fault(place, &message);
        }
    }

    fn slots(&mut self, config: &Config) {
        let mut slots = 0u32;
        for worker in &config.workers {
            slots = slots.saturating_add(u32::from(worker.dp_ranks.get()));
            if slots > SLOTS_MAX {
                let place = worker.dp_ranks.place.clone().unwrap_or_else(|| self.place(&worker.id));
                let message = format!("workers and their ranks up to here are {slots}; at most {SLOTS_MAX} are served");
                self.fault(place, &message);
                return;
            }
        }
    }

    /// Those of the document; the defaults are sound.
    fn presets(&mut self, presets: &[MetricNames]) {
        let listed = self.root.entry("engines").and_then(|engines| engines.node.entry("presets"));
        let Some((entry, Content::List(list))) = listed.map(|entry| (entry, &entry.node.content)) else { return };
        if presets.is_empty() {
            self.fault(entry.place.clone(), "no version of an engine is named: nobody's metrics could be read");
        }
        let mut taken = HashMap::new();
        for (item, names) in list.items.iter().zip(presets) {
            self.unique_at(&mut taken, item.place.clone(), &names.name, "name of a version");
        }
    }

    fn events(&mut self, config: &Config) {
        self.have_their_bus(config, config.workers.iter().filter_map(|worker| worker.events.as_ref()));
    }

    /// Where these say that events come over NATS, there is a server.
    pub(super) fn have_their_bus<'c>(&mut self, config: &Config, said: impl Iterator<Item = &'c Spanned<EventSource>>) {
        if config.events.nats.url.is_some() {
            return;
        }
        for events in said {
            if events.value == EventSource::Nats {
                let place = self.place(events);
                let message = match self.root.entry("events") {
                    Some(entry) => format!("`events.nats.url` is not set at {}", entry.place.seen_from(&place)),
                    None => "`events.nats.url` is not set".to_owned(),
                };
                self.fault(place, &message);
            }
        }
    }

    fn discovery(&mut self, config: &Config) {
        let Discovery { dns, nats, .. } = &config.discovery;
        if *nats.enabled && config.events.nats.url.is_none() {
            self.fault(self.place(&nats.enabled), "workers register over NATS, but `events.nats.url` is not set");
        }
        let Some(name) = &dns.name else { return };
        self.have_their_bus(config, dns.events.iter());
        if name.is_empty() {
            self.fault(self.place(name), "a name to look up must not be empty");
        }
        self.served_model(config, ("discovery.dns", self.place(name)), dns.model.as_ref());
        if !dns.id.contains("{host}") {
            self.fault(self.place(&dns.id), "without `{host}` all workers would have the same id");
        }
        if let Err(message) = dns.fill("10.0.0.1", dns.port.get()) {
            self.fault(self.place(&dns.url), &message);
        }
    }

    /// The model of the workers that a section at a place finds: one that there is, and the only one where none is named.
    pub(super) fn served_model(
        &mut self,
        config: &Config,
        (section, place): (&str, Place),
        model: Option<&Spanned<String>>,
    ) {
        let names: Vec<&str> = config.models.iter().map(|model| model.name.as_str()).collect();
        match (model, names.as_slice()) {
            (None, [_]) => {}
            (None, _) => {
                self.fault(place, &format!("which model do these workers serve? `{section}.model` is not set"));
            }
            (Some(model), names) if !names.contains(&model.as_str()) => {
                let message = format!("no model is named `{}`{}", model.as_str(), hint(model, names));
                self.fault(self.place(model), &message);
            }
            (Some(_), _) => {}
        }
    }

    fn tracing(&mut self, tracing: &Tracing) {
        if tracing.otlp.is_none() && !tracing.headers.is_empty() {
            self.fault(self.place(&tracing.headers), "`headers` without `otlp`: there is nobody to send them to");
        }
    }

    fn nats(&mut self, nats: &Nats) {
        match (&nats.user, &nats.password) {
            (Some(user), None) => self.fault(self.place(user), "`user` without `password`"),
            (None, Some(password)) => self.fault(self.place(password), "`password` without `user`"),
            _ => {}
        }
        match (&nats.tls_certificate, &nats.tls_key) {
            (Some(certificate), None) => self.fault(self.place(certificate), "`tls_certificate` without `tls_key`"),
            (None, Some(key)) => self.fault(self.place(key), "`tls_key` without `tls_certificate`"),
            _ => {}
        }
        let user = nats.user.as_ref().map(|user| ("user", self.place(user)));
        let secret = |name, secret: &Option<Spanned<_>>| secret.as_ref().map(|secret| (name, self.place(secret)));
        let token = secret("token", &nats.token);
        let ways = [user, token, secret("nkey_seed", &nats.nkey_seed), secret("credentials", &nats.credentials)];
        let mut ways = ways.into_iter().flatten();
        if let (Some((first, at)), Some((second, place))) = (ways.next(), ways.next()) {
            let message = format!("`{second}` beside `{first}` at {}: one way to authenticate", at.seen_from(&place));
            self.fault(place, &message);
        }
    }
}
