//! Workers behind TLS: whom the router trusts, who it says it is, and that all it asks them goes the same way.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use warmpath::shutdown::Tasks;

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, event, good_stream, whole};

/// A folder with an authority, certificates of it, and of a stranger's.
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("warmpath-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let it = Self(folder);
        for authority in ["ca", "other"] {
            let files = format!("-keyout {authority}.key -out {authority}.pem -subj /CN={authority}");
            it.openssl(&format!("req -x509 {KEY} {files} -addext basicConstraints=critical,CA:TRUE -days 2"));
        }
        it.sign("server", "ca", "subjectAltName=IP:127.0.0.1");
        it.sign("named", "ca", "subjectAltName=DNS:worker.example");
        it.sign("client", "ca", "subjectAltName=DNS:router");
        it.sign("stranger", "other", "subjectAltName=DNS:router");
        it
    }

    fn sign(&self, name: &str, authority: &str, extension: &str) {
        std::fs::write(self.0.join("extension"), extension).unwrap();
        self.openssl(&format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        let by = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial");
        self.openssl(&format!("x509 -req -in {name}.csr {by} -out {name}.pem -days 2 -extfile extension"));
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(&self.0).output();
        let output = output.expect("openssl is installed; scripts/check.sh does that");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The configuration of a router that trusts our authority, and says that it is `identity`.
    fn config(&self, identity: Option<&str>) -> String {
        let quoted = |name: String| format!("'{}'", self.path(&name).display());
        let own = identity.map_or_else(String::new, |name| {
            format!(", certificate: {}, key: {}", quoted(format!("{name}.pem")), quoted(format!("{name}.key")))
        });
        format!("upstream_tls: {{authorities: {}{own}}}", quoted("ca.pem".to_owned()))
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

fn pem(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
}

/// A port that speaks TLS for `backend`, as `name`, and asks clients for a certificate or not.
pub(crate) async fn tls_before(
    backend: SocketAddr,
    files: &Certificates,
    name: &str,
    asks: bool,
    tasks: &Tasks,
) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
    let builder = if asks {
        let mut roots = RootCertStore::empty();
        pem(&files.path("ca.pem")).into_iter().for_each(|authority| roots.add(authority).unwrap());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(files.path(&format!("{name}.key"))).unwrap();
    let config = builder.with_single_cert(pem(&files.path(&format!("{name}.pem"))), key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let more = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            more.spawn(async move {
                let Ok(mut client) = acceptor.accept(stream).await else { return };
                let mut worker = TcpStream::connect(backend).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut worker).await;
            });
        }
    });
    address
}

/// A router before one worker that is reached by https.
async fn router(address: SocketAddr, config: &str) -> TestFleet {
    let plain = fleet().engines(0).tokenizer("remote").stranger(address).config(config).start().await;
    let (old, new) = (format!("http://{address}"), format!("https://{address}"));
    plain.stop_gateway().await.start_gateway_with(&old, &new).await
}

const BODY: &[u8] = br#"{"model": "m", "prompt": "x", "stream": true}"#;

#[tokio::test]
async fn a_worker_behind_tls_is_asked_for_everything_over_it() {
    let files = Certificates::new("all");
    let (worker, tasks) = (Scripted::start(good_stream()).await, Tasks::new());
    worker.says(Some("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"));
    // It wants to know who asks.
    let address = tls_before(worker.address, &files, "server", true, &tasks).await;
    let fleet = router(address, &files.config(Some("client"))).await;
    // Checks, metrics, token ids, requests, commands.
    fleet.until_metric("warmpath_worker_up", "stranger-1", 1.0).await;
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    fleet.until_metric("warmpath_engine_kv_usage", "stranger-1", 0.25).await;
    let answer = fleet.client.post(fleet.url("/v1/completions")).body(BODY).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap()), (200, event("a") + "data: [DONE]\n\n"));
    let asked: Vec<String> = worker.seen().iter().map(|seen| seen.head.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(asked, ["/tokenize", "/v1/completions"]);
    assert_eq!(worker.seen()[1].header("host"), [address.to_string()]);
    worker.plays(vec![whole("200 OK", "{}")]);
    assert_eq!(fleet.operate("stranger-1", "reset_cache").await.0, 200);
    // Further requests go over the connection that is there.
    worker.plays(good_stream());
    for _ in 0..3 {
        assert_eq!(fleet.client.post(fleet.url("/v1/completions")).body(BODY).send().await.unwrap().status(), 200);
    }
}

/// Every way in which one side does not believe the other ends as a refused connection does.
#[tokio::test]
async fn whoever_is_not_who_it_says_is_not_talked_to() {
    let files = Certificates::new("none");
    let tasks = Tasks::new();
    for (name, asks, identity, why) in [
        ("named", false, None, "the certificate has another name"),
        ("stranger", false, None, "another authority signed it"),
        ("server", true, None, "the router shows no certificate"),
        ("server", true, Some("stranger"), "the worker does not know who signed the router's"),
    ] {
        let worker = Scripted::start(good_stream()).await;
        let address = tls_before(worker.address, &files, name, asks, &tasks).await;
        let fleet = router(address, &files.config(identity)).await;
        let answer = fleet.post_bytes("/v1/completions", BODY.to_vec()).await;
        assert_eq!(answer.status, 503, "{why}");
        assert_eq!(worker.seen().len(), 0, "{why}");
        fleet.eventually("it is out", async |fleet| fleet.metric("warmpath_worker_up", "stranger-1").await < 0.5).await;
    }
}

/// A certificate that is replaced is used for the next connections, and one that cannot be read is not.
#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart() {
    let files = Certificates::new("renewed");
    let (worker, tasks) = (Scripted::start(good_stream()).await, Tasks::new());
    let address = tls_before(worker.address, &files, "server", true, &tasks).await;
    for kind in ["pem", "key"] {
        std::fs::copy(files.path(&format!("stranger.{kind}")), files.path(&format!("own.{kind}"))).unwrap();
    }
    let settings = "timeouts: {health_interval: 100ms}\n".to_owned() + &files.config(Some("own"));
    let fleet = router(address, &settings).await;
    assert_eq!(fleet.post_bytes("/v1/completions", BODY.to_vec()).await.status, 503);
    // Half of the new pair: nobody's certificate.
    std::fs::copy(files.path("client.pem"), files.path("own.pem")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::fs::copy(files.path("client.key"), files.path("own.key")).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while fleet.post_bytes("/v1/completions", BODY.to_vec()).await.status != 200 {
        assert!(std::time::Instant::now() < deadline, "the new certificate is not used");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_router_without_its_certificates_does_not_start() {
    let files = Certificates::new("missing");
    let start = async |config: String| {
        let text = format!(
            "listen: {{data: '127.0.0.1:0', admin: '127.0.0.1:0'}}\nmodels: [{{name: m}}]\n\
             workers: [{{id: a, url: 'https://127.0.0.1:1', model: m}}]\n{config}\n"
        );
        let config = warmpath::config::Config::parse("a test", text).expect("the configuration is good");
        let error = warmpath::app::App::start(config, None).await.err().expect("it does not start");
        let cause = std::error::Error::source(&error).expect("it has a cause").to_string();
        (error.to_string(), cause.replace(&files.0.display().to_string(), "F"))
    };
    let what = "`upstream_tls` cannot be used".to_owned();
    let (said, cause) = start(files.config(Some("absent"))).await;
    assert_eq!(said, what);
    assert!(cause.starts_with("cannot read `F/absent.pem`: "), "{cause}");
    std::fs::write(files.path("empty.pem"), "").unwrap();
    std::fs::write(files.path("empty.key"), "").unwrap();
    assert_eq!(
        start(files.config(Some("empty"))).await,
        (what.clone(), "`F/empty.pem` holds no certificate in PEM".into())
    );
    std::fs::copy(files.path("client.pem"), files.path("mixed.pem")).unwrap();
    std::fs::copy(files.path("server.key"), files.path("mixed.key")).unwrap();
    let (said, cause) = start(files.config(Some("mixed"))).await;
    assert_eq!(said, what);
    assert!(cause.starts_with("`F/mixed.pem` cannot be used: "), "{cause}");
}
