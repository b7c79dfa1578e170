//! The way to the hub: TLS, proxies, the environment, and where the token goes.

use std::process::Command;

use flock::base::Secret;
use flock::edge::{HfHub, HubProxy, HubSettings};
use flock::ports::{Hub as _, HubError};
use serde_json::json;

use super::{client, client_as, refused, settings};
use crate::support::hub::{Authority, HubOptions, Proxy, StandInHub};

const COMMIT: &str = "cccccccccccccccccccccccccccccccccccccccc";

fn with_model(options: &HubOptions) -> StandInHub {
    let hub = StandInHub::start_with(options);
    let card = json!({"commit": COMMIT, "gated": "auto", "access": ["hf_secret"]});
    hub.repository("ada/m", &card, &[("m.gguf", b"GGUF"), ("config.json", b"{}")]);
    hub
}

#[tokio::test]
async fn tls_with_an_authority_of_the_house() {
    let authority = Authority::new("127.0.0.1");
    let hub = with_model(&HubOptions { tls: Some(authority.server()), ..HubOptions::default() });
    let token = Some(Secret::new("hf_secret".to_owned()));
    let trusting = HubSettings { certificates: Some(authority.authority()), token: token.clone(), ..settings(&hub) };
    let client = HfHub::new(trusting).expect("sound settings");
    assert!(client.endpoint().starts_with("https://"));
    let commit = client.repository("ada/m", None).await.expect("found").commit;
    assert_eq!(client.read("ada/m", &commit, "m.gguf", 0, 4).await.expect("read"), b"GGUF");

    // Nobody else is believed, and not asked again and again.
    let before = hub.requests().len();
    let strict = HfHub::new(HubSettings { token, ..settings(&hub) }).expect("sound settings");
    for error in
        [refused(strict.repository("ada/m", None).await), refused(strict.read("ada/m", &commit, "m.gguf", 0, 4).await)]
    {
        let says = matches!(&error, HubError::Unreachable { reason, .. } if reason.contains("certificate") && reason.contains("SSL_CERT_FILE"));
        assert!(says, "{error}");
    }
    assert_eq!(hub.requests().len(), before);

    // A way down to where everybody can read along is not followed.
    let headers = json!({"Location": hub.endpoint().replacen("https", "http", 1)});
    hub.fault(json!({"kind": "status", "on": "any", "status": 302, "headers": headers}));
    for error in
        [refused(client.repository("ada/m", None).await), refused(client.read("ada/m", &commit, "m.gguf", 0, 3).await)]
    {
        assert!(matches!(&error, HubError::Nonsense { reason, .. } if reason.contains("read along")), "{error}");
    }
    hub.heal();

    let missing = HubSettings { certificates: Some("/nonexistent.pem".into()), ..settings(&hub) };
    assert!(matches!(HfHub::new(missing).map(|_| ()), Err(HubError::Setting { .. })));
}

#[tokio::test]
async fn through_a_proxy_with_and_without_tls() {
    let authority = Authority::new("127.0.0.1");
    let (plain, secure) = (
        with_model(&HubOptions::default()),
        with_model(&HubOptions { tls: Some(authority.server()), ..HubOptions::default() }),
    );
    let proxy = Proxy::start(Some("ada:pass"));
    for hub in [&plain, &secure] {
        let through = |credentials: &str| {
            let proxy = HubProxy::Address(format!("http://{credentials}{}", proxy.address()));
            let token = Some(Secret::new("hf_secret".to_owned()));
            let certificates = Some(authority.authority());
            HfHub::new(HubSettings { proxy, token, certificates, ..settings(hub) }).expect("sound settings")
        };
        let client = through("ada:pass@");
        let commit = client.repository("ada/m", None).await.expect("found").commit;
        // reqwest drops a proxy's password, too, when a plain redirect leads to another host.
        let name = if hub.endpoint().starts_with("https") { "m.gguf" } else { "config.json" };
        assert!(!client.read("ada/m", &commit, name, 0, 4).await.expect("read").is_empty());
        let error = refused(through("ada:wrong@").repository("ada/m", None).await);
        assert!(matches!(&error, HubError::Unreachable { reason, .. } if reason.contains("proxy")), "{error}");
        assert!(!format!("{error:?} {}", error.hint()).contains("wrong"), "{error}");
    }
    let log = proxy.log();
    for base in [plain.endpoint(), secure.endpoint(), secure.cdn()] {
        let host = base.split_once("//").expect("an address").1;
        assert!(log.contains(host), "{host} is not in {log}");
    }
    let host = secure.endpoint().split_once("//").expect("an address").1;
    assert!(log.contains(&format!("CONNECT {host}")) && !log.contains(&format!("GET https://{host}")), "{log}");

    let nobody = HubProxy::Address("http://127.0.0.1:9".to_owned());
    let client = HfHub::new(HubSettings { proxy: nobody, ..settings(&plain) }).expect("sound settings");
    let error = refused(client.repository("ada/m", None).await);
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
}

/// Says what a repository holds, in a process of its own that has the given environment.
fn in_environment(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let home = tempfile::tempdir().expect("a folder");
    command.env_clear().env("FLOCK_TEST_ASK", "ada/m").env("HOME", home.path());
    command.args(["--exact", "checks::network::what_the_environment_says", "--nocapture", "--test-threads=1"]);
    let done = command.envs(variables.iter().copied()).output().expect("started");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let said = text.lines().find_map(|line| line.split_once("SAID ")).map(|(_, said)| said.to_owned());
    said.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&done.stderr)))
}

#[tokio::test]
async fn what_the_environment_says() {
    if let Ok(repository) = std::env::var("FLOCK_TEST_ASK") {
        // This is the process of its own.
        let answer = match HfHub::from_environment() {
            Err(error) => Err(error),
            Ok(hub) => match hub.repository(&repository, None).await {
                Ok(found) => hub.read(&repository, &found.commit, "m.gguf", 0, 4).await,
                Err(error) => Err(error),
            },
        };
        println!("\nSAID {answer:?}");
        return;
    }
    let authority = Authority::new("127.0.0.1");
    let plain = with_model(&HubOptions::default());
    let secure = with_model(&HubOptions { tls: Some(authority.server()), ..HubOptions::default() });
    let proxy = Proxy::start(None);
    let home = tempfile::tempdir().expect("a folder");
    std::fs::write(home.path().join("token"), "hf_secret\n").expect("written");
    let (home, pem) = (home.path().to_str().expect("UTF-8"), authority.authority());
    let pem = pem.to_str().expect("UTF-8");
    let through = format!("http://{}", proxy.address());
    let read = format!("Ok({:?})", b"GGUF");

    let to = ("HF_ENDPOINT", plain.endpoint());
    assert_eq!(in_environment(&[to, ("HF_TOKEN", "hf_secret")]), read);
    assert_eq!(in_environment(&[to, ("HF_HOME", home)]), read);
    assert!(in_environment(&[to]).contains("sent: false"));
    assert!(in_environment(&[to, ("HF_TOKEN", "hf_bob")]).contains("Forbidden"));
    assert!(in_environment(&[to, ("HF_HUB_OFFLINE", "1")]).contains("HF_HUB_OFFLINE"));
    assert!(in_environment(&[("HF_ENDPOINT", "hub"), ("HF_TOKEN", "hf_secret")]).contains("Setting"));
    assert_eq!(proxy.log(), "");
    assert_eq!(in_environment(&[to, ("HF_HOME", home), ("HTTP_PROXY", &through)]), read);
    assert_eq!(in_environment(&[to, ("HF_HOME", home), ("http_proxy", &through), ("NO_PROXY", "127.0.0.1")]), read);
    let asked = proxy.log().lines().count();
    assert_eq!(asked, 4, "the revision, the tree, the file, its bytes: {}", proxy.log());

    let to = ("HF_ENDPOINT", secure.endpoint());
    let trust = ("SSL_CERT_FILE", pem);
    assert_eq!(in_environment(&[to, trust, ("HF_HOME", home), ("HTTPS_PROXY", &through)]), read);
    assert!(proxy.log().contains("CONNECT"));
    assert!(in_environment(&[to, ("HF_HOME", home)]).contains("certificate"));
    // Without any authority there is no TLS, and no panic.
    let none = in_environment(&[to, ("SSL_CERT_FILE", "/nonexistent"), ("HF_HOME", home)]);
    assert!(none.contains("Err(Unreachable") || none.contains("Err(Setting"), "{none}");
}

#[tokio::test]
async fn the_token_reaches_the_hub_alone() {
    let (hub, other) =
        (with_model(&HubOptions { page: 1, ..HubOptions::default() }), with_model(&HubOptions::default()));
    let ada = client_as(&hub, "hf_secret");
    let commit = ada.repository("ada/m", None).await.expect("found").commit;
    for name in ["m.gguf", "config.json"] {
        assert!(!ada.read("ada/m", &commit, name, 0, 4).await.expect("read").is_empty());
    }
    let requests = hub.requests();
    assert!(requests.iter().all(|request| request.authorization == (request.server == "hub")), "{requests:?}");
    assert!(requests.iter().any(|request| request.server == "cdn"));
    let agents =
        requests.iter().all(|request| request.user_agent.as_deref().is_some_and(|name| name.starts_with("flock/")));
    assert!(agents, "{requests:?}");

    // A redirect to another hub, from every route.
    for (route, path) in [
        ("info", "/api/models/ada/m"),
        ("tree", "/api/models/ada/m/tree/main"),
        ("resolve", "/ada/m/resolve/main/m.gguf"),
    ] {
        let to = format!("{}{path}", other.endpoint());
        hub.fault(json!({"kind": "status", "on": route, "status": 302, "headers": {"Location": to}}));
        let _ = ada.repository("ada/m", None).await;
        let _ = ada.read("ada/m", &commit, "m.gguf", 0, 4).await;
        hub.heal();
    }
    let strayed = other.requests();
    assert!(strayed.len() >= 3 && strayed.iter().all(|request| !request.authorization), "{strayed:?}");

    // A mirror that passes on where the real hub has the next page: it is asked for at the mirror.
    let tree = format!("/api/models/ada/m/tree/{commit}");
    let next = format!("{}{tree}?recursive=true&cursor=MQ==", other.endpoint());
    hub.fault(json!({"kind": "link", "on": "tree", "times": 1, "url": next}));
    let before = hub.requests().len();
    assert_eq!(ada.repository("ada/m", None).await.expect("found").files.len(), 2);
    assert_eq!(hub.requests_since(before).len(), 3);
    assert_eq!(other.requests().len(), strayed.len());
    hub.heal();

    // Nor does it show in an error, even where the hub repeats it, nor do addresses that are signed.
    let echo = json!({"error": "no token hf_secret here"});
    hub.fault(json!({"kind": "status", "on": "info", "status": 418, "body": echo.clone()}));
    hub.fault(json!({"kind": "status", "on": "resolve", "status": 500, "body": echo}));
    let mut errors =
        vec![refused(ada.repository("ada/m", None).await), refused(ada.read("ada/m", &commit, "m.gguf", 0, 4).await)];
    hub.heal();
    for fault in
        [json!({"kind": "drop", "bytes": -1}), json!({"kind": "loop"}), json!({"kind": "status", "status": 403})]
    {
        let mut fault = fault;
        fault["on"] = "cdn".into();
        hub.fault(fault);
        errors.push(refused(ada.read("ada/m", &commit, "m.gguf", 0, 4).await));
        hub.heal();
    }
    for error in errors {
        let shown = format!("{error} {error:?} {}", error.hint());
        assert!(!shown.contains("hf_secret") && !shown.contains("Signature"), "{shown}");
    }
}

#[tokio::test]
async fn so_many_requests_at_a_time_and_no_more() {
    let hub = StandInHub::start();
    let weights = vec![7; 60_000];
    hub.repository("ada/m", &json!({}), &[("m.gguf", &weights)]);
    let commit = hub.commit("ada/m");
    hub.fault(json!({"kind": "trickle", "on": "cdn", "rate": 200_000}));
    let mut settings = settings(&hub);
    settings.limits.at_once = 3;
    let client = HfHub::new(settings).expect("sound settings");
    let reads = (0..12).map(|at| client.read("ada/m", &commit, "m.gguf", at, 40_000));
    let outcomes = futures::future::join_all(reads).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let most = hub.requests().iter().map(|request| request.at_once).max();
    assert_eq!(most, Some(3));
}

#[tokio::test]
async fn nobody_at_home() {
    let (endpoint, client) = {
        let hub = StandInHub::start();
        (hub.endpoint().to_owned(), client(&hub))
    };
    for error in [
        refused(client.repository("ada/m", None).await),
        refused(client.read("ada/m", COMMIT, "m.gguf", 0, 4).await),
        refused(client.quantised_by("ada/m", "ada").await),
    ] {
        let says = matches!(&error, HubError::Unreachable { reason, .. } if reason.contains("refused"));
        assert!(says && error.to_string().starts_with(&endpoint), "{error}");
    }
    let unknown = HubSettings { limits: super::limits(), ..HubSettings::new("http://hub.invalid") };
    let error = refused(HfHub::new(unknown).expect("sound settings").repository("ada/m", None).await);
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
}
