//! TLS: what is spoken, who is let in, and certificates that change while the router runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use http_body_util::BodyExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use warmpath::shutdown::Tasks;

use crate::credentials::{Folder, openssl};
use crate::fleet::{TestFleet, fleet};
use crate::http2::{http2, models};
use crate::raw::{MODELS, ask, connect, exchange, streamed_text, until_closed};
use crate::reload::alone;
use crate::scripted::{Scripted, Step, end, event, head, piece};

/// Certificates that `openssl` made.
struct Certificates(Folder);

impl Certificates {
    fn new(name: &str) -> Self {
        let made = Self(Folder::new(name));
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        let authority = "-keyout ca.key -out ca.pem -subj /CN=ca -addext basicConstraints=critical,CA:TRUE -days 9";
        openssl(&made.0.0, &format!("req -x509 {key} {authority}"));
        made.make("server", "IP:127.0.0.1", 2);
        made
    }

    /// A certificate of the authority.
    fn make(&self, name: &str, subject: &str, days: u32) {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(&self.0.0, &format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        self.0.file("extension", &format!("subjectAltName={subject}"));
        let sign = format!("-in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days {days}");
        openssl(&self.0.0, &format!("x509 -req {sign} -extfile extension"));
    }

    /// A certificate of the authority, valid from one time to another as `openssl ca` writes them.
    fn make_between(&self, name: &str, from: &str, to: &str) {
        self.0.file("index", "");
        self.0.file(
            "ca.conf",
            "[ca]\ndefault_ca=own\n[own]\ndatabase=index\nnew_certs_dir=.\ndefault_md=sha256\nrand_serial=yes\n\
             policy=any\n[any]\ncommonName=supplied\n",
        );
        self.make(name, "IP:127.0.0.1", 2);
        let signer = "-batch -notext -config ca.conf -cert ca.pem -keyfile ca.key -extfile extension";
        let files = format!("-in {name}.csr -out {name}.pem");
        openssl(&self.0.0, &format!("ca {signer} {files} -startdate {from} -enddate {to}"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// Puts one pair in the place of the one that is served.
    fn replace(&self, by: &str) {
        for end in ["pem", "key"] {
            std::fs::copy(self.path(&format!("{by}.{end}")), self.path(&format!("server.{end}"))).unwrap();
        }
    }

    fn der(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(name)).unwrap()
    }

    /// The keys of a port.
    fn keys(&self, port: &str, more: &str) -> String {
        let (certificate, key) = (self.path("server.pem"), self.path("server.key"));
        format!("{port}_tls: {{certificate: '{}', key: '{}'{more}}}", certificate.display(), key.display())
    }

    /// Shakes hands as somebody who trusts the authority, shows this certificate, and offers these protocols.
    async fn shake(
        &self,
        address: SocketAddr,
        shown: Option<&str>,
        offered: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der("ca.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![self.der(&format!("{name}.pem"))], key).unwrap()
            }
        };
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = connect(address).await;
        TlsConnector::from(Arc::new(config)).connect(ServerName::IpAddress(address.ip().into()), stream).await
    }

    /// The certificate that the port shows.
    async fn shown(&self, address: SocketAddr) -> CertificateDer<'static> {
        let stream = self.shake(address, None, &[]).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    }
}

async fn expires(fleet: &TestFleet) -> f64 {
    fleet.metric("warmpath_tls_certificate_expiry_timestamp_seconds", "listener=\"data\"").await
}

#[tokio::test]
async fn http1_and_http2_are_spoken_over_tls() {
    let certificates = Certificates::new("spoken");
    let fleet = fleet().engines(1).listen(&certificates.keys("data", "")).start().await;
    let address = fleet.app.data_address();
    for offered in [&[][..], &["http/1.1"], &["http/1.1", "unknown"]] {
        let mut stream = certificates.shake(address, None, offered).await.unwrap();
        for _ in 0..2 {
            assert_eq!(ask(&mut stream, MODELS).await.unwrap().status, 200);
        }
        // What is wrong is said in words here, too.
        let refused = ask(&mut stream, "GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").await.unwrap();
        assert_eq!((refused.status, refused.refusal().as_str()), (400, "the request has more than one `Host`"));
    }
    let tasks = Tasks::new();
    let stream = certificates.shake(address, None, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let answer = http2(stream, 1 << 20, &tasks).await.send_request(models()).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{\"object\":\"list\""), "{body:?}");
    let in_two_days = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64() + 2.0 * 86_400.0;
    assert!((expires(&fleet).await - in_two_days).abs() < 300.0);
}

#[tokio::test]
async fn what_is_no_handshake_is_refused_and_counted() {
    let certificates = Certificates::new("refused");
    let timeouts = "timeouts: {header_read: 300ms}";
    let fleet = fleet().engines(1).listen(&certificates.keys("data", "")).config(timeouts).start().await;
    let address = fleet.app.data_address();
    let failures = async |reason: &str| {
        fleet.until_metric("warmpath_tls_handshake_failures_total", &format!("reason=\"{reason}\""), 1.0).await;
    };
    assert!(exchange(address, MODELS.as_bytes()).await.is_none());
    failures("protocol").await;
    let mut silent = connect(address).await;
    assert_eq!(until_closed(&mut silent).await.0, "");
    failures("timeout").await;
    drop(connect(address).await);
    failures("disconnected").await;
    // A client that does not know the authority.
    let arguments = format!("s_client -connect {address} -verify_return_error -brief");
    assert!(!s_client(&arguments).await);
    failures("refused_by_client").await;
    let arguments = format!("s_client -connect {address} -brief");
    for (version, taken) in [("-tls1_2", true), ("-tls1_3", true), ("-tls1_1 -cipher DEFAULT@SECLEVEL=0", false)] {
        assert_eq!(s_client(&format!("{arguments} {version}")).await, taken, "{version}");
    }
}

/// Whether `openssl` shakes hands.
async fn s_client(arguments: &str) -> bool {
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    let run = move || Command::new("openssl").args(arguments).stdin(std::process::Stdio::null()).output();
    tokio::task::spawn_blocking(run).await.unwrap().expect("openssl is installed").status.success()
}

#[tokio::test]
async fn where_clients_must_show_a_certificate_only_those_of_the_authority_are_let_in() {
    let certificates = Certificates::new("clients");
    certificates.make("client", "DNS:client", 2);
    let strangers = Certificates::new("strangers");
    strangers.make("client", "DNS:client", 2);
    for name in ["client.pem", "client.key"] {
        std::fs::copy(strangers.path(name), certificates.path(&format!("strange-{name}"))).unwrap();
    }
    let more = format!(", client_authorities: '{}'", certificates.path("ca.pem").display());
    let keys = format!("{}, {}", certificates.keys("data", &more), certificates.keys("admin", ""));
    let fleet = fleet().engines(1).listen(&keys).start_at_once().await;
    let address = fleet.app.data_address();
    let mut stream = certificates.shake(address, Some("client"), &[]).await.unwrap();
    assert_eq!(ask(&mut stream, MODELS).await.unwrap().status, 200);
    for shown in [None, Some("strange-client")] {
        // In TLS 1.3 a client believes that it is through before it is looked at.
        if let Ok(mut stream) = certificates.shake(address, shown, &[]).await {
            let _ = stream.write_all(MODELS.as_bytes()).await;
            assert!(stream.read_to_end(&mut Vec::new()).await.is_err(), "{shown:?}");
        }
    }
    // The admin port has TLS, too, and asks nobody.
    let mut admin = certificates.shake(fleet.app.admin_address(), None, &[]).await.unwrap();
    let metrics = ask(&mut admin, "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap().body;
    let line = "warmpath_tls_handshake_failures_total{listener=\"data\",reason=\"client_certificate\"} 2";
    assert!(metrics.contains(line), "{metrics}");
}

/// What runs goes on under the certificate that it began with, whoever comes is shown the new one, and one that cannot
/// be used changes nothing.
#[tokio::test]
async fn certificates_change_under_open_streams_and_broken_ones_are_not_taken() {
    let _alone = alone().await;
    let certificates = Certificates::new("changed");
    certificates.make("second", "IP:127.0.0.1", 5);
    certificates.make("third", "IP:127.0.0.1", 7);
    let rest = event("b") + "data: [DONE]\n\n";
    let worker = Scripted::start(vec![head(), piece(event("a")), Step::Await, piece(&rest), end()]).await;
    let keys = certificates.keys("data", "");
    let fleet = fleet().engines(0).stranger(worker.address).listen(&keys).start().await;
    let address = fleet.app.data_address();
    let (first, second, third) =
        (certificates.der("server.pem"), certificates.der("second.pem"), certificates.der("third.pem"));
    assert_eq!(certificates.shown(address).await, first);
    let mut stream = certificates.shake(address, None, &[]).await.unwrap();
    stream.write_all(streamed_text().as_bytes()).await.unwrap();
    worker.asked(1).await;
    let reads = async |outcome: &str, count: f64| {
        fleet.until_metric("warmpath_tls_certificate_reads_total", &format!("outcome=\"{outcome}\""), count).await;
    };
    let before = expires(&fleet).await;
    // By its own looking.
    certificates.replace("second");
    fleet
        .eventually("the second is shown", async |fleet| certificates.shown(fleet.app.data_address()).await == second)
        .await;
    assert!((expires(&fleet).await - before - 3.0 * 86_400.0).abs() < 60.0);
    // Broken in three ways: text that is none, a key of another, nothing at all.
    certificates.0.file("server.pem", "no certificate");
    hangup();
    reads("refused", 1.0).await;
    assert_eq!(certificates.shown(address).await, second);
    let health = fleet.health().await;
    assert_eq!(health["status"], "degraded");
    let complaint = health["degraded"][0].as_str().unwrap();
    assert!(complaint.starts_with("the new certificate is not used, the old one stays: "), "{complaint}");
    assert!(complaint.ends_with("server.pem` holds no certificate in PEM"), "{complaint}");
    std::fs::copy(certificates.path("third.pem"), certificates.path("server.pem")).unwrap();
    hangup();
    reads("refused", 2.0).await;
    std::fs::remove_file(certificates.path("server.key")).unwrap();
    hangup();
    reads("refused", 3.0).await;
    assert_eq!(certificates.shown(address).await, second);
    // And whole again, on being asked.
    certificates.replace("third");
    hangup();
    fleet
        .eventually("the third is shown", async |fleet| certificates.shown(fleet.app.data_address()).await == third)
        .await;
    fleet.eventually("all is well", async |fleet| fleet.health().await["status"] == "ok").await;
    worker.go();
    let answer = crate::raw::answer(&mut stream).await.unwrap();
    assert!(answer.body.contains("data: [DONE]"), "{answer:?}");
}

/// No client takes it, so it does not take the place of one that clients do take, until its time has come.
#[tokio::test]
async fn a_certificate_outside_its_time_does_not_replace_one_within() {
    let _alone = alone().await;
    let certificates = Certificates::new("untimely");
    certificates.make_between("expired", "20200101000000Z", "20210203000000Z");
    certificates.make_between("early", "20400506000000Z", "20410101000000Z");
    let fleet = fleet().engines(1).listen(&certificates.keys("data", "")).start().await;
    let address = fleet.app.data_address();
    let first = certificates.der("server.pem");
    let path = certificates.path("server.pem").display().to_string();
    let faults = [("expired", "it expired on 2021-02-03"), ("early", "it is not valid before 2040-05-06")];
    for (count, (name, fault)) in [1.0, 2.0].into_iter().zip(faults) {
        certificates.replace(name);
        hangup();
        fleet.until_metric("warmpath_tls_certificate_reads_total", "outcome=\"refused\"", count).await;
        assert_eq!(certificates.shown(address).await, first, "{name}");
        let health = fleet.health().await;
        let expected = format!("the new certificate is not used, the old one stays: `{path}` cannot be used: {fault}");
        assert_eq!((&health["status"], &health["degraded"][0]), (&"degraded".into(), &expected.into()));
    }
    let soon = Command::new("date").args(["-u", "-d", "+4 seconds", "+%Y%m%d%H%M%SZ"]).output().unwrap().stdout;
    certificates.make_between("soon", String::from_utf8(soon).unwrap().trim(), "20410101000000Z");
    let soon = certificates.der("soon.pem");
    certificates.replace("soon");
    hangup();
    fleet
        .eventually("it is taken in its time", async |fleet| certificates.shown(fleet.app.data_address()).await == soon)
        .await;
    fleet.eventually("all is well", async |fleet| fleet.health().await["status"] == "ok").await;
}

/// The clock may be wrong, and whoever starts has nothing better. It is said, and another may take its place.
#[tokio::test]
async fn a_certificate_outside_its_time_is_served_at_the_start_and_warned_of() {
    let _alone = alone().await;
    let certificates = Certificates::new("late");
    certificates.make("whole", "IP:127.0.0.1", 2);
    certificates.make_between("server", "20200101000000Z", "20210203000000Z");
    certificates.make_between("early", "20400506000000Z", "20410101000000Z");
    let keys = certificates.keys("data", "");
    let fleet = fleet().engines(1).listen(&keys).start().await;
    let path = certificates.path("server.pem").display().to_string();
    let said = |fault: &str| format!("clients will not take the certificate `{path}`: {fault}");
    let degraded = async || fleet.health().await["degraded"][0].clone();
    assert_eq!(degraded().await, said("it expired on 2021-02-03"));
    let yaml = format!(
        "models: [{{name: m}}]\nrouting: {{policy: round_robin}}\nlisten: {{{keys}}}\n\
         workers: [{{id: w, url: 'http://127.0.0.1:9', model: m}}]\n"
    );
    let config = certificates.0.file("warmpath.yaml", &yaml);
    let mut check = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    check.args(["check", "--strict"]).arg(&config);
    let checked = check.output().unwrap();
    let warnings = String::from_utf8(checked.stderr).unwrap();
    assert!(warnings.ends_with(&format!(": warning: {}\n", said("it expired on 2021-02-03"))), "{warnings}");
    assert_eq!(checked.status.code(), Some(1));
    // Of two that nobody takes the newer one.
    certificates.replace("early");
    hangup();
    fleet
        .eventually("the newer one is in use", async |_| degraded().await == said("it is not valid before 2040-05-06"))
        .await;
    certificates.replace("whole");
    hangup();
    fleet.eventually("all is well", async |fleet| fleet.health().await["status"] == "ok").await;
    assert_eq!(certificates.shown(fleet.app.data_address()).await, certificates.der("whole.pem"));
    let checked = check.output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Asks this process, and so every router in it, to read its certificates again.
fn hangup() {
    let status = Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_said_at_the_start() {
    let certificates = Certificates::new("start");
    certificates.make("other", "IP:127.0.0.1", 2);
    std::fs::copy(certificates.path("other.key"), certificates.path("server.key")).unwrap();
    let yaml = format!(
        "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0', {}}}\nmodels: [{{name: m}}]\n\
         workers: [{{id: w, url: 'http://127.0.0.1:9', model: m}}]\n",
        certificates.keys("data", "")
    );
    let config = warmpath::config::Config::parse("a test", yaml).unwrap();
    let error = warmpath::app::App::start(config, None).await.err().expect("it does not start");
    assert_eq!(error.to_string(), "listen.data_tls");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("server.pem` cannot be used: "), "{cause}");
}
