//! EndpointSlices -> workers, without I/O.
//!
//! An endpoint is a worker while it is ready and does not terminate. The slices of a Service together are its endpoints: one
//! that is moved stands in two of them for a while, and one with addresses of two families in one of each.

use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use warmpath_core::ids::WorkerId;

use super::object::{self, Endpoint, Object, SlicePort};
use crate::config::{KubernetesSource, Port, Worker};
use crate::fleet::discovery::WORKERS_MAX;

/// The most slices: a Service of a thousand endpoints has about ten.
pub(super) const SLICES_MAX: usize = 1024;

/// The most endpoints of all slices together, each in two of them.
const ENDPOINTS_MAX: usize = 2 * WORKERS_MAX;

/// The longest name of an object or a host, by Kubernetes' own rule.
const NAME_MAX: usize = 253;

/// Slices whose faults are told one by one.
const TOLD_MAX: usize = 4;

/// Names of ports that a message shows.
const SHOWN_MAX: usize = 4;

/// All slices of one Service.
#[derive(Debug, Default)]
pub(super) struct Slices {
    slices: BTreeMap<Box<str>, Slice>,
    /// Endpoints of all of them.
    endpoints: usize,
    /// Slices that there was no room for.
    left_out: usize,
}

/// What is kept of a slice.
#[derive(Debug)]
struct Slice {
    family: Family,
    ports: Vec<(Box<str>, u16)>,
    ready: Vec<Ready>,
    /// Endpoints that were not kept.
    left_out: usize,
    /// Endpoints that are ready and whose address is none.
    unreadable: usize,
}

/// An endpoint that takes requests.
#[derive(Debug)]
struct Ready {
    host: Box<str>,
    pod: Option<Box<str>>,
}

/// What a slice's addresses are; of an endpoint that has several, the first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
    Name,
}

impl Slices {
    /// Takes in a slice, in the place of what was known of it. One without a name is none.
    pub(super) fn put(&mut self, object: Object) {
        let Some(name) = named(&object) else { return };
        self.remove(&name);
        if self.slices.len() >= SLICES_MAX {
            self.left_out += 1;
            return;
        }
        let mut slice = Slice::of(object);
        let room = ENDPOINTS_MAX - self.endpoints;
        slice.left_out += slice.ready.len().saturating_sub(room);
        slice.ready.truncate(room);
        slice.ready.shrink_to_fit();
        self.endpoints += slice.ready.len();
        self.slices.insert(name, slice);
    }

    /// Forgets a slice.
    pub(super) fn take_out(&mut self, object: &Object) {
        if let Some(name) = named(object) {
            self.remove(&name);
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(slice) = self.slices.remove(name) {
            self.endpoints -= slice.ready.len();
        }
    }

    /// Tells that there are more slices than were asked for.
    pub(super) fn leave_out(&mut self, slices: usize) {
        self.left_out += slices;
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Every endpoint once, in the order of ids, and what is wrong. Where several slices name a pod, the address of the
    /// first family counts, and of the first slice in that.
    pub(super) fn workers(&self, source: &KubernetesSource, model: &str) -> (Vec<Worker>, Vec<String>) {
        let mut trouble = Vec::new();
        let mut found = Vec::new();
        for (name, slice) in self.slices.iter().filter(|(_, slice)| !slice.ready.is_empty()) {
            match slice.port(source.port.as_ref()) {
                Ok(port) => found.extend(slice.ready.iter().map(|ready| (slice.family, port, ready))),
                Err(reason) => trouble.push(format!("EndpointSlice `{name}` is not used: {reason}")),
            }
        }
        let untold = trouble.len().saturating_sub(TOLD_MAX);
        if untold > 0 {
            trouble.truncate(TOLD_MAX);
            trouble.push(format!("{untold} more EndpointSlices are not used"));
        }
        found.sort_by_key(|(family, _, ready)| (ready.pod.is_none(), *family));
        let (mut ids, mut addresses, mut workers) = (HashSet::new(), HashSet::new(), BTreeMap::new());
        for (_, port, ready) in found {
            let name = ready.pod.as_deref().unwrap_or(&ready.host);
            // Both are noted, so that neither another address of this pod nor another name of this address counts.
            let (is_new, is_elsewhere) = (ids.insert(name), !addresses.insert((&*ready.host, port)));
            if !is_new || is_elsewhere {
                continue;
            }
            match described(source, model, (name, &ready.host, port)) {
                Ok(worker) => drop(workers.entry(worker.id.as_str().to_owned()).or_insert(worker)),
                Err(reason) if trouble.len() <= 2 * TOLD_MAX => trouble.push(reason),
                Err(_) => {}
            }
        }
        trouble.extend(self.unused());
        (workers.into_values().collect(), trouble)
    }

    /// What was left out for its size, or could not be read.
    fn unused(&self) -> impl Iterator<Item = String> {
        let sum = |of: fn(&Slice) -> usize| self.slices.values().map(of).sum::<usize>();
        let (endpoints, unreadable) = (sum(|slice| slice.left_out), sum(|slice| slice.unreadable));
        let (slices, of_one) = (self.left_out, object::ENDPOINTS_MAX);
        [
            (slices, format!("there are more than {SLICES_MAX} EndpointSlices: {slices} or more are not used")),
            (endpoints, format!("{endpoints} endpoints are not used: a slice may have {of_one}, all {ENDPOINTS_MAX}")),
            (unreadable, format!("{unreadable} endpoints have no address that could be used")),
        ]
        .into_iter()
        .filter_map(|(count, line)| (count > 0).then_some(line))
    }
}

/// The name of a slice, if it is one.
fn named(object: &Object) -> Option<Box<str>> {
    let name = object.metadata.name.as_deref()?;
    is_name(name).then(|| name.into())
}

/// Whether Kubernetes could have given this name: it is shown, and becomes a worker's.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits)
}

impl Slice {
    fn of(object: Object) -> Self {
        let family = match object.address_type.as_deref() {
            Some("IPv6") => Family::V6,
            Some("FQDN") => Family::Name,
            _ => Family::V4,
        };
        let ports = object.ports.unwrap_or_default().items.into_iter().filter_map(tcp).collect();
        let endpoints = object.endpoints.unwrap_or_default();
        let mut slice = Self { family, ports, ready: Vec::new(), left_out: endpoints.more, unreadable: 0 };
        for endpoint in endpoints.items.into_iter().filter(is_ready) {
            match Ready::of(family, endpoint) {
                Some(ready) => slice.ready.push(ready),
                None => slice.unreadable += 1,
            }
        }
        slice
    }

    /// The port of its endpoints.
    fn port(&self, wanted: Option<&Port>) -> Result<u16, String> {
        let names = || -> String {
            let shown: Vec<&str> = self.ports.iter().take(SHOWN_MAX).map(|(name, _)| &**name).collect();
            if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
        };
        match (wanted, self.ports.as_slice()) {
            (Some(Port::Number(number)), _) => Ok(number.get()),
            (Some(Port::Name(wanted)), ports) => match ports.iter().find(|(name, _)| **name == **wanted) {
                Some((_, port)) => Ok(*port),
                None => Err(format!("none of its TCP ports is named `{wanted}` (known: {})", names())),
            },
            (None, [(_, port)]) => Ok(*port),
            (None, []) => Err("it has no TCP port: set `discovery.kubernetes.port`".to_owned()),
            (None, _) => Err(format!("it has several ports ({}): set `discovery.kubernetes.port`", names())),
        }
    }
}

impl Ready {
    /// `None`: its address is none.
    fn of(family: Family, endpoint: Endpoint) -> Option<Self> {
        let address = endpoint.addresses.unwrap_or_default().items.into_iter().next()?;
        let host = match family {
            Family::V4 => address.parse::<Ipv4Addr>().ok()?.to_string(),
            Family::V6 => address.parse::<Ipv6Addr>().ok()?.to_string(),
            Family::Name => is_name(&address).then_some(address)?,
        };
        let pod = endpoint.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
        let pod = pod.and_then(|target| target.name).filter(|name| is_name(name));
        Some(Self { host: host.into(), pod: pod.map(Into::into) })
    }
}

/// Conditions that are not told count as those of an endpoint that is well. One that terminates is not ready either, unless its
/// Service publishes those that are not.
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
    let terminating = conditions.and_then(|conditions| conditions.terminating).unwrap_or(false);
    ready && !terminating
}

/// The name and number of a TCP port.
fn tcp(port: SlicePort) -> Option<(Box<str>, u16)> {
    let is_tcp = port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let number = u16::try_from(port.port?).ok().filter(|number| *number > 0 && is_tcp)?;
    let name: String = port.name.unwrap_or_default().chars().take(NAME_MAX).collect();
    Some((name.into(), number))
}

fn described(source: &KubernetesSource, model: &str, (name, host, port): (&str, &str, u16)) -> Result<Worker, String> {
    let (id, url) = source.fill(name, host, port)?;
    let mut worker = Worker::at(WorkerId::from(id.as_str()), url, model.to_owned());
    worker.api_key = source.api_key.clone();
    worker.dp_ranks = source.dp_ranks.clone();
    worker.events = source.events.clone();
    worker.capacity_blocks = source.capacity_blocks;
    worker.max_num_seqs = source.max_num_seqs;
    Ok(worker)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use serde_json::{Value, json};

    use super::*;

    fn put(slices: &mut Slices, value: Value) {
        slices.put(serde_json::from_value(value).unwrap());
    }

    fn all(values: impl IntoIterator<Item = Value>) -> Slices {
        let mut slices = Slices::default();
        values.into_iter().for_each(|value| put(&mut slices, value));
        slices
    }

    fn slice(name: &str, family: &str, endpoints: Value) -> Value {
        json!({"metadata": {"name": name}, "addressType": family, "endpoints": endpoints,
            "ports": [{"name": "http", "protocol": "TCP", "port": 8000}]})
    }

    fn pod(name: &str, address: &str) -> Value {
        json!({"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": name}})
    }

    fn port(text: &str) -> KubernetesSource {
        KubernetesSource { port: Some(Port::try_from(text.to_owned()).unwrap()), ..KubernetesSource::default() }
    }

    fn seen(slices: &Slices, source: &KubernetesSource) -> (Vec<String>, Vec<String>) {
        let (workers, trouble) = slices.workers(source, "m");
        assert!(workers.iter().all(|worker| worker.model.value == "m"));
        (workers.iter().map(|worker| format!("{} {}", worker.id.as_str(), worker.url.value)).collect(), trouble)
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    /// The forms are those of Kubernetes' documentation of EndpointSlices.
    #[test]
    fn endpoints_that_are_ready_are_workers_named_for_their_pods() {
        let slices = all([slice(
            "vllm-abc",
            "IPv4",
            json!([
                pod("vllm-1", "10.1.2.4"),
                pod("vllm-0", "10.1.2.3"),
                {"addresses": ["10.1.2.5"]},
                {"addresses": ["10.1.2.6"], "conditions": {"ready": null}, "targetRef": {"kind": "Node", "name": "n"}},
                {"addresses": ["10.1.2.7"], "conditions": {"ready": false, "serving": false, "terminating": false}},
                {"addresses": ["10.1.2.8"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["10.1.2.9"], "conditions": {"ready": true, "serving": true, "terminating": true}},
            ]),
        )]);
        let expected = [
            "10.1.2.5 http://10.1.2.5:8000",
            "10.1.2.6 http://10.1.2.6:8000",
            "vllm-0 http://10.1.2.3:8000",
            "vllm-1 http://10.1.2.4:8000",
        ];
        assert_eq!(seen(&slices, &KubernetesSource::default()), (lines(&expected), Vec::new()));
    }

    #[test]
    fn what_is_said_of_all_workers_is_said_of_each() {
        let slices = all([slice("s", "IPv4", json!([pod("a", "10.0.0.1")]))]);
        let source = KubernetesSource {
            api_key: Some("k".into()),
            dp_ranks: NonZeroU16::new(2).unwrap().into(),
            max_num_seqs: 8.try_into().unwrap(),
            capacity_blocks: Some(9.try_into().unwrap()),
            id: "gpu-{name}".to_owned().into(),
            url: "https://{name}.vllm:{port}".to_owned().into(),
            ..port("8443")
        };
        let (workers, _) = slices.workers(&source, "m");
        let [worker] = workers.as_slice() else { panic!("{workers:?}") };
        assert_eq!((worker.id.as_str(), worker.url.to_string()), ("gpu-a", "https://a.vllm:8443".to_owned()));
        assert_eq!(
            (worker.dp_ranks.get(), worker.max_num_seqs.get(), worker.api_key.clone()),
            (2, 8, Some("k".into()))
        );
        assert_eq!(worker.capacity_blocks.map(|blocks| blocks.get()), Some(9));
    }

    #[test]
    fn slices_are_merged_and_each_pod_and_address_counts_once() {
        let slices = all([
            // Both families of one pod: IPv4, although its slice comes later.
            slice("a-v6", "IPv6", json!([pod("w-0", "fd00::1"), pod("w-1", "FD00:0::2")])),
            slice("b-v4", "IPv4", json!([pod("w-0", "10.0.0.1"), pod("w-2", "10.0.0.3")])),
            // Moved from one slice to the other, and seen in both.
            slice("c-v4", "IPv4", json!([pod("w-2", "10.0.0.3")])),
            // The same address once more, by somebody who does not know the pod.
            slice("0-by-hand", "IPv4", json!([{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.9", "10.0.0.8"]}])),
            slice("names", "FQDN", json!([{"addresses": ["gpu.example"]}])),
        ]);
        let expected = [
            "10.0.0.9 http://10.0.0.9:8000",
            "gpu.example http://gpu.example:8000",
            "w-0 http://10.0.0.1:8000",
            "w-1 http://[fd00::2]:8000",
            "w-2 http://10.0.0.3:8000",
        ];
        assert_eq!(seen(&slices, &KubernetesSource::default()), (lines(&expected), Vec::new()));
    }

    #[test]
    fn a_slice_that_changes_or_goes_takes_its_endpoints_along() {
        let mut slices = all([slice("s", "IPv4", json!([pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]))]);
        put(&mut slices, slice("s", "IPv4", json!([pod("b", "10.0.0.7")])));
        let expected = lines(&["b http://10.0.0.7:8000"]);
        assert_eq!(seen(&slices, &KubernetesSource::default()), (expected, Vec::new()));
        slices.take_out(&serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap());
        assert_eq!(seen(&slices, &KubernetesSource::default()), (Vec::new(), Vec::new()));
        assert!(slices.is_empty() && slices.endpoints == 0);
    }

    #[test]
    fn a_port_is_the_only_one_or_the_one_that_is_named() {
        let mut two = slice("s", "IPv4", json!([pod("a", "10.0.0.1")]));
        two["ports"] = json!([{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000, "protocol": "TCP"},
            {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "any", "port": null}, {"name": "far", "port": 70000}]);
        let two = all([two]);
        let none = all([json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": null,
            "endpoints": [pod("a", "10.0.0.1")]})]);
        let at = |port: u16| Ok(format!("a http://10.0.0.1:{port}"));
        let not_used = |why: &str| Err(format!("EndpointSlice `s` is not used: {why}"));
        for (slices, source, expected) in [
            (&two, port("http"), at(8000)),
            (&two, port("7000"), at(7000)),
            (&none, port("7000"), at(7000)),
            (&two, port("dns"), not_used("none of its TCP ports is named `dns` (known: metrics, http)")),
            (&none, port("http"), not_used("none of its TCP ports is named `http` (known: none)")),
            (
                &two,
                KubernetesSource::default(),
                not_used("it has several ports (metrics, http): set `discovery.kubernetes.port`"),
            ),
            (&none, KubernetesSource::default(), not_used("it has no TCP port: set `discovery.kubernetes.port`")),
        ] {
            let (workers, trouble) = seen(slices, &source);
            let expected = match expected {
                Ok(worker) => (vec![worker], Vec::new()),
                Err(reason) => (Vec::new(), vec![reason]),
            };
            assert_eq!((workers, trouble), expected);
        }
    }

    #[test]
    fn addresses_and_names_that_are_none_are_left_out_and_counted() {
        let long = "a".repeat(254);
        let slices = all([
            slice(
                "s",
                "IPv4",
                json!([pod("v6", "fd00::1"), pod("text", "10.0.0.1/x"), {"addresses": []}, {"addresses": null}, {},
                    pod("evil\n", "10.0.0.1"), pod(&long, "10.0.0.2"), pod("", "10.0.0.3")]),
            ),
            slice("names", "FQDN", json!([{"addresses": ["a b"]}, {"addresses": [long]}])),
            // No slice at all: what it says is not even counted.
            slice("no/name", "IPv4", json!([{}])),
            json!({"metadata": {}, "endpoints": [{}]}),
        ]);
        let workers = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|host| format!("{host} http://{host}:8000"));
        let trouble = lines(&["7 endpoints have no address that could be used"]);
        assert_eq!(seen(&slices, &KubernetesSource::default()), (workers.to_vec(), trouble));
    }

    #[test]
    fn what_is_kept_has_bounds_and_what_is_not_is_told() {
        let hosts = |start: usize, count: usize| -> Value {
            let host = |n: usize| json!({"addresses": [format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)]});
            (start..start + count).map(host).collect()
        };
        let mut slices = all((0..9).map(|n| slice(&format!("s-{n}"), "IPv4", hosts(1000 * n, 1000))));
        let (workers, trouble) = seen(&slices, &KubernetesSource::default());
        assert_eq!(workers.len(), 8192);
        assert_eq!(trouble, ["808 endpoints are not used: a slice may have 1000, all 8192"]);
        // Once there is room, whoever is told of again is used.
        put(&mut slices, slice("s-0", "IPv4", hosts(0, 10)));
        put(&mut slices, slice("s-8", "IPv4", hosts(8000, 1001)));
        let (workers, trouble) = seen(&slices, &KubernetesSource::default());
        assert_eq!((workers.len(), slices.endpoints), (8010, 8010));
        assert_eq!(trouble, ["1 endpoints are not used: a slice may have 1000, all 8192"]);
        let mut many = all((0..1030).map(|n| slice(&format!("s-{n}"), "IPv4", json!([]))));
        assert_eq!(many.slices.len(), 1024);
        let expected = "there are more than 1024 EndpointSlices: 6 or more are not used";
        assert_eq!(many.workers(&KubernetesSource::default(), "m").1, [expected]);
        // One that is known has its place.
        put(&mut many, slice("s-0", "IPv4", hosts(0, 1)));
        assert_eq!(many.workers(&KubernetesSource::default(), "m").0.len(), 1);
    }

    #[test]
    fn of_many_slices_with_a_fault_the_first_are_named() {
        let slices = all((0..9).map(|n| slice(&format!("s-{n}"), "IPv4", json!([pod("a", "10.0.0.1")]))));
        let (workers, trouble) = seen(&slices, &port("grpc"));
        assert_eq!((workers.len(), trouble.len()), (0, 5));
        assert_eq!(trouble[4], "5 more EndpointSlices are not used");
    }
}
