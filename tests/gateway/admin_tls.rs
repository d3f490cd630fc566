//! Commands that ask an admin port over TLS: its own, or that of a proxy before it.

use std::path::Path;
use std::process::{Command, Output};

use warmpath::shutdown::Tasks;

use crate::fleet::fleet;
use crate::tls::{Certificates, tls_before};

/// What the command says to an address. The system trusts nobody but the stranger's authority.
async fn run(files: &Certificates, args: &[&str], more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(args).args(more).env("SSL_CERT_FILE", files.path("other.pem")).env_remove("SSL_CERT_DIR");
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_tap_and_top_ask_through_a_proxy_that_speaks_tls() {
    let (files, tasks) = (Certificates::new("admin-proxy"), Tasks::new());
    let fleet = fleet().listen("admin_token: secret").start().await;
    let first = fleet.complete("hello".into()).await;
    let proxy = tls_before(fleet.app.admin_address(), &files, "server", false, &tasks).await;
    let (address, ca) = (format!("https://{proxy}"), files.path("ca.pem"));
    let more = ["--admin", &address, "--ca", text(&ca), "--token", "secret"];
    let decision = format!(" {} ", first.worker);
    for (args, told) in [
        (&["top", "--once"][..], concat!("warmpath ", env!("CARGO_PKG_VERSION"), "  ok")),
        (&["tap", "--last", "1", "--count", "1"], decision.as_str()),
        (&["explain", "--request", "1"], "decision 1, request "),
    ] {
        let output = run(&files, args, &more).await;
        let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains(told), "{said}{complaint}");
    }
    let output = run(&files, &["top", "--once"], &more[..4]).await;
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("401 ") && complaint.contains("--token"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_knows_its_clients_is_shown_a_certificate() {
    let files = Certificates::new("admin-clients");
    let path = |name: &str| files.path(name).display().to_string();
    let keys = format!(
        "admin_tls: {{certificate: '{}', key: '{}', client_authorities: '{}'}}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    );
    let fleet = fleet().listen(&keys).start().await;
    let (address, ca) = (format!("https://{}", fleet.app.admin_address()), path("ca.pem"));
    let more = ["--admin", &address, "--ca", &ca];
    let (certificate, key) = (path("client.pem"), path("client.key"));
    let shown = [&more[..], &["--cert", &certificate, "--key", &key]].concat();
    let output = run(&files, &["top", "--once"], &shown).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run(&files, &["top", "--once"], &more).await;
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("asks for a certificate") && complaint.contains("--cert and --key"), "{complaint}");
    let (certificate, key) = (path("stranger.pem"), path("stranger.key"));
    let shown = [&more[..], &["--cert", &certificate, "--key", &key]].concat();
    let output = run(&files, &["top", "--once"], &shown).await;
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("take the certificate in") && complaint.contains("stranger.pem"), "{complaint}");
    assert_eq!(run(&files, &["top", "--cert", &certificate], &more).await.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_nobody_vouches_for_is_not_asked_and_what_to_do_is_said() {
    let (files, tasks) = (Certificates::new("admin-trust"), Tasks::new());
    let fleet = fleet().start().await;
    let admin = fleet.app.admin_address();
    let server = tls_before(admin, &files, "server", false, &tasks).await;
    let named = tls_before(admin, &files, "named", false, &tasks).await;
    let (ca, other, absent) = (files.path("ca.pem"), files.path("other.pem"), files.path("absent.pem"));
    for (address, authorities, told) in [
        (format!("https://{server}"), None, "is of no authority that this system trusts: name its authority with --ca"),
        (format!("https://{server}"), Some(&other), "is of no authority in "),
        (format!("https://{named}"), Some(&ca), "is for another name: use that in the address"),
        (format!("https://{admin}"), Some(&ca), "speaks no TLS: its address may begin with http://"),
        (format!("http://{server}"), None, "is no HTTP: if it speaks TLS, its address begins with https://"),
        (format!("https://{server}"), Some(&absent), "cannot read `"),
        ("https://127.0.0.1:9".to_owned(), Some(&ca), "no router answers at https://127.0.0.1:9/: "),
    ] {
        let mut more = vec!["--admin", &address];
        more.extend(authorities.iter().flat_map(|path| ["--ca", text(path)]));
        for args in [&["top", "--once"][..], &["tap", "--count", "1"], &["explain", "--request", "1"]] {
            let output = run(&files, args, &more).await;
            let complaint = String::from_utf8_lossy(&output.stderr);
            // A file that cannot be read is wrong use.
            let status = if told == "cannot read `" { 2 } else { 1 };
            assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{address}: {complaint}");
            assert!(complaint.starts_with("warmpath: ") && complaint.contains(told), "{address}: {complaint}");
        }
    }
}
