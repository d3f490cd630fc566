//! Who may do what on a guarded server: every kind of credentials, and the example configuration's least privilege.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt;
use nkeys::KeyPair;
use serde_json::{Value, json};
use warmpath::bridge::{Bridge, BridgeSettings};
use warmpath::events::nats::{Credentials, NatsBus, NatsSettings, Tls};
use warmpath::events::{Heard, Message};

use crate::bridge::{Played, until_published};
use crate::by_hand::{batch, stored};
use crate::fleet::{TestFleet, fleet};
use crate::nats::NatsServer;
use crate::sidecar::bridge_settings;

fn settings(url: &str, credentials: Credentials) -> NatsSettings {
    NatsSettings { credentials, ..NatsSettings::publisher(url.to_owned(), "warmpath".to_owned()) }
}

/// A bridge publishes a batch of worker `w`, which is acknowledged where there is a stream.
async fn a_bridge_publishes(nats: NatsSettings) {
    let (played, feed) = Played::start().await;
    let settings = BridgeSettings { nats, ..bridge_settings(played.address, "m", "w", "nats://127.0.0.1:1") };
    let bridge = Bridge::start(settings, vec![feed]).await.unwrap();
    played.says(Heard::Connected).await;
    played.batch(1001.0, true).await;
    until_published(&bridge, 1).await;
}

/// A gateway with these keys below `events.nats`, and a bridge with these settings, are let in.
async fn are_let_in(keys: &str, nats: NatsSettings) {
    let _gateway = fleet().engines(1).silent().nats(nats.url.clone()).credentials(keys).start().await;
    a_bridge_publishes(nats).await;
}

/// Somebody with these settings is not let in, and says why.
async fn is_kept_out(nats: NatsSettings, why: &str) {
    let bus = NatsBus::connect(nats).await.unwrap();
    for _ in 0..500 {
        if bus.trouble().is_some_and(|trouble| trouble.to_lowercase().contains(why)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}, not {why}", bus.trouble());
}

/// A folder that goes with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warmpath-credentials-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn user_and_password_let_in() {
    let server = NatsServer::guarded();
    let user = |password: &str| Credentials::User { user: "warm".to_owned(), password: password.to_owned() };
    Box::pin(are_let_in("user: warm, password: path", settings(&server.url(), user("path")))).await;
    is_kept_out(settings(&server.url(), user("cold")), "authorization violation").await;
}

/// It is connected, but hears nothing: that is said wherever somebody looks, until the server lets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_the_server_refuses_is_told_of() {
    let may = |subjects: &str| {
        let user = format!("{{user: r, password: s, permissions: {{publish: [\">\"], subscribe: [{subjects}]}}}}");
        format!("authorization {{ users: [{user}] }}\n")
    };
    let mut server = NatsServer::configured(false, may("\"_INBOX.>\", \"warmpath.kv.m.engine-2.>\""));
    let router = fleet().silent().nats(server.url()).credentials("user: r, password: s").start_at_once().await;
    let state = async |fleet: &TestFleet, source: usize| fleet.bus().await["sources"][source]["state"].clone();
    router.eventually("one is down", async |fleet| state(fleet, 0).await == "down").await;
    router.eventually("the other one is not", async |fleet| state(fleet, 1).await == "connected").await;
    let refused = "the server refuses the subscription to `warmpath.kv.m.engine-1.0`: permissions?";
    assert_eq!(router.bus().await["sources"][0]["last_error"], refused);
    let said = async |fleet: &TestFleet| {
        let health = fleet.health().await;
        let degraded = health["degraded"].as_array().unwrap().iter().filter_map(Value::as_str);
        degraded
            .clone()
            .any(|line| line.starts_with("the event bus does not bring all events (") && line.contains(refused))
    };
    router.eventually("it is said", said).await;
    server.kill();
    server.configure(may("\">\""));
    server.up();
    let well = async |fleet: &TestFleet| state(fleet, 0).await == "connected" && fleet.health().await["status"] == "ok";
    router.eventually("all is well", well).await;
}

#[tokio::test]
async fn a_token_lets_in() {
    let server = NatsServer::configured(true, "authorization { token: t0ken }\n".to_owned());
    Box::pin(are_let_in("token: t0ken", settings(&server.url(), Credentials::Token("t0ken".to_owned())))).await;
    is_kept_out(settings(&server.url(), Credentials::Anonymous), "authorization violation").await;
}

#[tokio::test]
async fn an_nkey_lets_in() {
    let (ours, other) = (KeyPair::new_user(), KeyPair::new_user());
    let config = format!("authorization {{ users: [{{ nkey: {} }}] }}\n", ours.public_key());
    let server = NatsServer::configured(true, config);
    let seed = ours.seed().unwrap();
    Box::pin(are_let_in(&format!("nkey_seed: {seed}"), settings(&server.url(), Credentials::Nkey(seed.clone())))).await;
    let other = Credentials::Nkey(other.seed().unwrap());
    is_kept_out(settings(&server.url(), other), "authorization violation").await;
}

/// What `nsc` writes, made by hand: a JWT that its issuer has signed.
fn jwt(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: &Value) -> String {
    let claims = json!({"jti": name, "iat": 1, "iss": issuer.public_key(), "sub": subject.public_key(), "name": name,
        "nats": nats});
    let part = |value: &Value| base64url(value.to_string().as_bytes());
    let signed = format!("{}.{}", part(&json!({"typ": "JWT", "alg": "ed25519-nkey"})), part(&claims));
    let signature = base64url(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

/// RFC 4648, section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap();
            text.push(char::from(DIGITS[index]));
        }
    }
    text
}

#[tokio::test]
async fn a_creds_file_lets_in() {
    let (operator, account, user) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let operators = jwt(&operator, &operator, "O", &json!({"type": "operator", "version": 2}));
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1});
    let accounts = jwt(&operator, &account, "A", &json!({"limits": limits, "type": "account", "version": 2}));
    let allowed = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2});
    let users = jwt(&account, &user, "U", &allowed);
    let config = format!(
        "operator: {operators}\nresolver: MEMORY\nresolver_preload: {{ {}: {accounts} }}\n",
        account.public_key()
    );
    let server = NatsServer::configured(false, config);
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\n{users}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed().unwrap()
    );
    let folder = Folder::new("creds");
    let file = folder.file("user.creds", &creds);
    let keys = format!("credentials: '${{file:{}}}'", file.display());
    Box::pin(are_let_in(&keys, settings(&server.url(), Credentials::Creds(creds)))).await;
    is_kept_out(settings(&server.url(), Credentials::Anonymous), "authorization violation").await;
}

/// Runs `openssl` in a folder.
pub(crate) fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    let output = output.expect("openssl is installed; scripts/check.sh does that");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn an_authority_of_our_own_is_trusted_and_a_certificate_of_ours_is_shown() {
    let folder = Folder::new("tls");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let authority = "-keyout ca.key -out ca.pem -subj /CN=ca -addext basicConstraints=critical,CA:TRUE -days 2";
    openssl(&folder.0, &format!("req -x509 {key} {authority}"));
    for (name, extension) in [("server", "subjectAltName=IP:127.0.0.1"), ("client", "subjectAltName=DNS:client")] {
        openssl(&folder.0, &format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        folder.file("extension", extension);
        let sign = format!("-in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2");
        openssl(&folder.0, &format!("x509 -req {sign} -extfile extension"));
    }
    let path = |name: &str| folder.0.join(name);
    let config = format!(
        "tls {{ cert_file: '{}', key_file: '{}', ca_file: '{}', verify: true }}\n",
        path("server.pem").display(),
        path("server.key").display(),
        path("ca.pem").display()
    );
    let server = NatsServer::configured(true, config);
    let url = server.url().replace("nats://", "tls://");
    let keys = format!(
        "tls_authorities: '{}', tls_certificate: '{}', tls_key: '{}'",
        path("ca.pem").display(),
        path("client.pem").display(),
        path("client.key").display()
    );
    let tls = Tls { authorities: Some(path("ca.pem")), identity: Some((path("client.pem"), path("client.key"))) };
    let anonymous = settings(&url, Credentials::Anonymous);
    Box::pin(are_let_in(&keys, NatsSettings { tls: tls.clone(), ..anonymous.clone() })).await;
    is_kept_out(anonymous.clone(), "ends the connection: its log says why; with tls").await;
    is_kept_out(NatsSettings { tls: Tls { identity: None, ..tls }, ..anonymous }, "ends the connection").await;
}

/// The example configuration, with passwords and a folder of its own.
fn example(folder: &Folder) -> NatsServer {
    let text = include_str!("../../docker/nats/nats.conf");
    let text = text.replace("/var/lib/nats", &folder.0.display().to_string());
    let text = text.replace("$ROUTER_PASSWORD", "r").replace("$WORKER_1_PASSWORD", "w1");
    NatsServer::configured(false, text.replace("$WORKER_2_PASSWORD", "w2"))
}

/// A client of this user, with an inbox of its own.
async fn client(server: &NatsServer, user: &str, password: &str) -> async_nats::Client {
    let options = async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    let inbox = if user == "router" { "_INBOX".to_owned() } else { format!("_INBOX_{user}") };
    let timeout = Some(Duration::from_millis(700));
    options.custom_inbox_prefix(inbox).request_timeout(timeout).connect(server.url()).await.unwrap()
}

#[tokio::test]
async fn under_the_example_configuration_bridge_and_router_work() {
    let folder = Folder::new("works");
    let server = example(&folder);
    let user = Credentials::User { user: "worker-1".to_owned(), password: "w1".to_owned() };
    let (played, feed) = Played::start().await;
    let nats = settings(&server.url(), user);
    let settings = BridgeSettings { nats, ..bridge_settings(played.address, "m", "worker-1", "nats://127.0.0.1:1") };
    let router = client(&server, "router", "r").await;
    let mut reports = router.subscribe("warmpath.load.*").await.unwrap();
    let bridge = Bridge::start(settings, vec![feed]).await.unwrap();
    played.says(Heard::Connected).await;
    played.batch(1001.0, true).await;
    until_published(&bridge, 1).await;
    assert!(tokio::time::timeout(Duration::from_secs(5), reports.next()).await.unwrap().is_some());
    let context = async_nats::jetstream::new(router);
    let mut registered = false;
    for _ in 0..500 {
        let store = context.get_key_value("warmpath_workers").await;
        registered = match store {
            Ok(store) => store.get("worker-1").await.unwrap().is_some(),
            Err(_) => false,
        };
        if registered {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(registered, "the router sees the registration");
    let gateway = fleet().engines(0).config("discovery: {nats: {enabled: true}}");
    let gateway = gateway.nats(server.url()).credentials("user: router, password: r").start().await;
    gateway.eventually("all is well", async |gateway| gateway.health().await["status"] == "ok").await;
    // Of the worker that it found in the bucket it reads the stream, and hears the load.
    gateway.until_metric("warmpath_engine_load_reports_total", "worker=\"worker-1\",outcome=\"ok", 1.0).await;
    let message = Message { payload: batch(Some(0), vec![stored(0, 10)]).into(), seq: Some(1), epoch: None };
    played.says(Heard::Live(message)).await;
    gateway.until_metric("warmpath_index_blocks", "worker=\"worker-1\"", 10.0).await;
}

#[tokio::test]
async fn under_the_example_configuration_nobody_does_more_than_it_should() {
    let folder = Folder::new("no-more");
    let server = example(&folder);
    let router = client(&server, "router", "r").await;
    let worker = client(&server, "worker-1", "w1").await;
    let streams = async_nats::jetstream::new(router.clone());
    let bus = NatsBus::connect(settings(
        &server.url(),
        Credentials::User { user: "router".to_owned(), password: "r".to_owned() },
    ));
    bus.await.unwrap().prepare().await;
    let mut heard = router.subscribe("warmpath.>").await.unwrap();
    let mut kv = router.subscribe("warmpath.kv.>").await.unwrap();
    let mut overheard = worker.subscribe("warmpath.kv.>").await.unwrap();
    let mut inboxes = worker.subscribe("_INBOX.>").await.unwrap();
    for (subject, client) in [
        ("warmpath.kv.m.worker-2.0", &worker),
        ("warmpath.load.worker-2", &worker),
        ("$KV.warmpath_workers.worker-2", &worker),
        ("warmpath.snapshot.worker-1", &worker),
        ("_INBOX.forged", &worker),
        ("$JS.API.STREAM.DELETE.WARMPATH_KV", &worker),
        ("$JS.API.STREAM.PURGE.WARMPATH_KV", &worker),
        ("$JS.API.CONSUMER.CREATE.WARMPATH_KV", &worker),
        ("$JS.API.STREAM.MSG.GET.WARMPATH_KV", &worker),
        ("$JS.API.DIRECT.GET.WARMPATH_KV.warmpath.kv.m.worker-2.0", &worker),
        ("$JS.API.STREAM.DELETE.WARMPATH_KV", &router),
        ("$JS.API.STREAM.PURGE.WARMPATH_KV", &router),
        ("$JS.API.STREAM.UPDATE.WARMPATH_KV", &router),
        ("warmpath.kv.m.worker-1.0", &router),
        ("warmpath.load.worker-1", &router),
        ("$KV.warmpath_workers.worker-1", &router),
    ] {
        let answer = client.request(subject, "{}".into()).await;
        assert!(answer.is_err(), "{subject} is answered: {answer:?}");
    }
    let messages = async || streams.get_stream("WARMPATH_KV").await.unwrap().cached_info().state.messages;
    assert_eq!(messages().await, 0);
    // What it may do, so that silence above means something.
    let allowed = worker.request("warmpath.kv.m.worker-1.0", "{}".into()).await.unwrap();
    assert!(String::from_utf8_lossy(&allowed.payload).contains("\"seq\":1"), "{allowed:?}");
    assert_eq!(messages().await, 1);
    let first = tokio::time::timeout(Duration::from_secs(5), kv.next()).await.unwrap().unwrap();
    assert_eq!(first.subject.as_str(), "warmpath.kv.m.worker-1.0");
    for refused in [&mut heard, &mut overheard, &mut inboxes] {
        assert!(tokio::time::timeout(Duration::from_millis(50), refused.next()).await.is_err());
    }
}
