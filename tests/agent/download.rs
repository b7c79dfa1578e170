//! The agent fetches files itself: from a stand-in hub with its content network, with every fault that it can have.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use flock::base::Secret;
use flock::inventory::HubFiles;
use serde_json::{Value, json};

use super::support::{HubOptions, HubRequest, StandInHub};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_ThisTokenIsInNobodysHands";
/// Bytes of a file that one request asks for.
const CHUNK: u64 = 8 << 20;

fn content(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64 | 1;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    });
    words.take(bytes.div_ceil(8)).flatten().take(bytes).collect()
}

/// A repository on a stand-in, and the set that is to come from it.
struct Lab {
    hub: StandInHub,
    home: Home,
    fetch: FetchSpec,
    token: Option<Secret<String>>,
    limit: Option<u64>,
}

impl Lab {
    fn new(files: &[(&str, &[u8])]) -> Self {
        Self::with(StandInHub::start(), json!({}), files)
    }

    fn with(hub: StandInHub, card: Value, files: &[(&str, &[u8])]) -> Self {
        let home = Home::new();
        let mut card = card;
        card["commit"] = COMMIT.into();
        hub.repository("owner/model", &card, files);
        let files = files.iter().map(|(name, content)| FetchFile {
            name: (*name).to_owned(),
            size_bytes: content.len() as u64,
            sha256: Some(Digest::of(content).to_string()),
        });
        let fetch = FetchSpec {
            source: "hf:owner/model".into(),
            revision: COMMIT.into(),
            folder: home.path().join("weights/model").display().to_string(),
            files: files.collect(),
        };
        Self { hub, home, fetch, token: None, limit: None }
    }

    fn request(&self) -> Request {
        let endpoint = self.hub.endpoint().to_owned();
        Request::Download {
            fetch: self.fetch.clone(),
            from: HubFiles { endpoint, repository: "owner/model".into(), commit: COMMIT.into() },
            token: self.token.clone(),
            limit_bytes_per_s: self.limit,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.fetch.folder).join(name)
    }

    fn size(&self) -> u64 {
        self.fetch.files.iter().map(|file| file.size_bytes).sum()
    }

    fn begin(&self) -> Link {
        let mut link = self.home.connect();
        write_message(link.input.as_mut().expect("open"), &self.request()).expect("sent");
        link
    }

    /// The answer, after whatever it told on the way.
    fn run(&self) -> Response {
        let mut link = self.begin();
        loop {
            match link.next() {
                Response::Progress { have_bytes } => assert!(have_bytes <= self.size()),
                answer => return answer,
            }
        }
    }

    fn arrives(&self) {
        let answer = self.run();
        assert!(matches!(answer, Response::Fetched { .. }), "{answer:?}");
        let done = self.home.ask(Request::FetchDone { fetch: self.fetch.clone() });
        assert!(matches!(done, Response::Fetched { complete: true, .. }), "{done:?}");
        for file in &self.fetch.files {
            let digest = Digest::of(&std::fs::read(self.path(&file.name)).expect("there"));
            assert_eq!(Some(digest.to_string()), file.sha256, "{}", file.name);
        }
    }

    fn refusal(&self) -> Refusal {
        match self.run() {
            Response::Refused { refusal } => refusal,
            other => panic!("{other:?}"),
        }
    }
}

impl Link {
    fn next(&mut self) -> Response {
        read_message(&mut self.output).expect("a message").expect("an answer")
    }

    /// The answer, after whatever is still told on the way: what has all its bytes may have to be read once more.
    fn answer(&mut self) -> Response {
        loop {
            match self.next() {
                Response::Progress { .. } => {}
                answer => return answer,
            }
        }
    }

    /// Waits until so many bytes are there, and says how many.
    fn until(&mut self, bytes: u64) -> u64 {
        loop {
            match self.next() {
                Response::Progress { have_bytes } if have_bytes >= bytes => return have_bytes,
                Response::Progress { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn length(range: Option<&str>, all: u64) -> u64 {
    let Some((from, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else { return all };
    last.parse::<u64>().expect("a number") + 1 - from.parse::<u64>().expect("a number")
}

fn of(requests: &[HubRequest], server: &str) -> Vec<HubRequest> {
    requests.iter().filter(|request| request.server == server).cloned().collect()
}

#[test]
fn a_set_is_downloaded_and_the_token_stays_in_memory() {
    let (big, small) = (content(70_000_000), content(900));
    let mut lab = Lab::with(
        StandInHub::start(),
        json!({ "gated": "manual", "access": [TOKEN] }),
        &[("big model-00001-of-00001.gguf", &big), ("sub/config.json", &small), ("empty.txt", b"")],
    );
    (lab.token, lab.limit) = (Some(Secret::new(TOKEN.into())), Some(60_000_000));
    let mut link = lab.begin();
    link.until(20_000_000);
    let proc = PathBuf::from(format!("/proc/{}", link.child.id()));
    for file in ["cmdline", "environ"] {
        let text = std::fs::read(proc.join(file)).expect("it lives");
        assert!(!String::from_utf8_lossy(&text).contains(TOKEN), "the token is in {file}");
    }
    let status = std::fs::read_to_string(proc.join("status")).expect("it lives");
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse::<u64>().ok());
    assert!(peak.is_some_and(|kib| kib < 64 << 10), "{peak:?} KiB");
    link.until(lab.size());
    assert!(matches!(link.answer(), Response::Fetched { .. }));
    drop(link);
    lab.arrives();
    let mut looked = 0;
    let mut folders = vec![lab.home.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let bytes = std::fs::read(entry.path()).expect("read");
                assert!(!bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()), "{:?}", entry.path());
                looked += 1;
            }
        }
    }
    assert!(looked >= 4);
    let requests = lab.hub.requests();
    let (hub, cdn) = (of(&requests, "hub"), of(&requests, "cdn"));
    assert!(hub.iter().all(|request| request.authorization) && !cdn.iter().any(|request| request.authorization));
    assert!(hub.iter().all(|request| request.user_agent.as_ref().is_some_and(|name| name.starts_with("flock-agent/"))));
    assert_eq!(cdn.iter().map(|request| request.bytes).sum::<u64>(), big.len() as u64);
    assert!(hub.len() <= 8, "{} requests to the hub for three files", hub.len());
    // Without a login it is told that one is needed, and nothing is asked twice.
    let lab = Lab { token: None, home: Home::new(), ..lab };
    let lab = Lab { fetch: FetchSpec { folder: lab.home.path().join("w").display().to_string(), ..lab.fetch }, ..lab };
    let before = lab.hub.requests().len();
    let Refusal::Hub { status: Some(401), text, hint } = lab.refusal() else { panic!("no refusal of the hub") };
    assert!(text.contains("gated") && hint.contains("HF_TOKEN"), "{text} {hint}");
    assert!(lab.hub.requests_since(before).len() <= 4);
}

#[test]
fn a_killed_agent_is_gone_on_from_what_it_had() {
    let big = content(64 << 20);
    let mut lab = Lab::new(&[("big.gguf", &big)]);
    lab.limit = Some(16 << 20);
    let mut link = lab.begin();
    let had = link.until(20 << 20);
    kill(link.child.id());
    link.child.wait().expect("ended");
    std::mem::forget(link);
    // The dead agent's own requests are noted once their sockets are found dead, which may be later.
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let state = lab.home.ask(Request::FetchState { fetch: lab.fetch.clone() });
    let Response::Fetched { complete: false, have_bytes } = state else { panic!("{state:?}") };
    assert!(have_bytes[0] + 4 * CHUNK >= had && have_bytes[0] < big.len() as u64, "{have_bytes:?} of {had}");
    lab.limit = None;
    lab.arrives();
    let again: u64 = of(&lab.hub.requests(), "cdn")
        .iter()
        .filter(|request| request.time > killed && request.status == Some(206))
        .map(|request| length(request.range.as_deref(), lab.size()))
        .sum();
    assert!(again + had <= lab.size(), "{again} bytes were asked for after {had} were there");
    let all: u64 = of(&lab.hub.requests(), "cdn").iter().map(|request| request.bytes).sum();
    assert!(all <= lab.size() + 4 * CHUNK, "{all} bytes were sent");
}

#[test]
fn a_controller_that_goes_ends_the_download_and_another_goes_on() {
    let big = content(64 << 20);
    let mut lab = Lab::new(&[("big.gguf", &big)]);
    lab.limit = Some(16 << 20);
    let mut link = lab.begin();
    let had = link.until(20 << 20);
    let began = Instant::now();
    let Link { child, input, output } = &mut link;
    drop(input.take());
    // Nobody reads what it tells any more.
    *output = BufReader::new(
        std::process::Command::new("true").stdout(Stdio::piped()).spawn().expect("runs").stdout.take().expect("piped"),
    );
    let status = child.wait().expect("ended");
    assert!(!status.success() && began.elapsed() < Duration::from_secs(10), "{status} after {:?}", began.elapsed());
    // While one downloads, another waits and needs no byte of its own.
    lab.limit = Some(24 << 20);
    let mut first = lab.begin();
    first.until(had);
    lab.limit = None;
    lab.arrives();
    let last = first.until(lab.size());
    assert_eq!((last, matches!(first.answer(), Response::Fetched { .. })), (lab.size(), true));
    let all: u64 = of(&lab.hub.requests(), "cdn").iter().map(|request| request.bytes).sum();
    assert!(all <= lab.size() + 4 * CHUNK, "{all} bytes were sent");
}

#[test]
fn faults_that_pass_are_got_over() {
    let big = content(20_000_000);
    let faults = [
        json!({ "kind": "drop", "on": "cdn", "bytes": 1_000_000, "times": 5 }),
        json!({ "kind": "drop", "on": "cdn", "bytes": 100_000, "times": 3, "reset": true }),
        json!({ "kind": "drop", "on": "any", "bytes": -1, "times": 4 }),
        json!({ "kind": "headers", "on": "any", "times": 3 }),
        json!({ "kind": "length", "on": "cdn", "delta": 7, "times": 2 }),
        json!({ "kind": "length", "on": "cdn", "delta": -7, "times": 2 }),
        json!({ "kind": "alter", "on": "cdn", "at": 9_000_000, "times": 3 }),
        json!({ "kind": "short", "on": "cdn", "bytes": 1000, "times": 2 }),
        json!({ "kind": "shift", "on": "cdn", "by": 1, "times": 1, "after": 1 }),
        json!({ "kind": "unsaid", "on": "cdn", "times": 2 }),
        json!({ "kind": "whole", "on": "cdn" }),
        json!({ "kind": "whole", "on": "cdn", "after": 2 }),
        json!({ "kind": "html", "on": "cdn", "times": 2 }),
        json!({ "kind": "html", "on": "resolve", "times": 2 }),
        json!({ "kind": "status", "on": "resolve", "status": 429, "headers": { "Retry-After": "1" }, "times": 2 }),
        json!({ "kind": "status", "on": "cdn", "status": 503, "times": 4 }),
        json!({ "kind": "status", "on": "cdn", "status": 403, "times": 2 }),
        json!({ "kind": "status", "on": "cdn", "status": 416, "times": 2 }),
        json!({ "kind": "status", "on": "resolve", "status": 502, "times": 3 }),
    ];
    let mut lab = Lab::new(&[("big.gguf", &big), ("config.json", b"{}")]);
    for (number, fault) in faults.into_iter().enumerate() {
        lab.fetch.folder = lab.home.path().join(format!("weights/{number}")).display().to_string();
        let before = lab.hub.requests().len();
        lab.hub.fault(fault.clone());
        println!("{fault}");
        lab.arrives();
        lab.hub.heal();
        let requests = lab.hub.requests_since(before).len();
        assert!(requests <= 40, "{fault}: {requests} requests");
    }
}

#[test]
fn faults_that_last_are_said_and_left() {
    let big = content(20_000_000);
    let mut lab = Lab::new(&[("big.gguf", &big), ("config.json", b"{}")]);
    let faults = [
        (json!({ "kind": "loop", "on": "resolve" }), "in a circle"),
        (json!({ "kind": "loop", "on": "cdn" }), "in a circle"),
        (json!({ "kind": "html", "on": "cdn" }), "a web page"),
        (json!({ "kind": "html", "on": "resolve" }), "a web page"),
        (json!({ "kind": "status", "on": "cdn", "status": 403 }), "answers 403"),
        (json!({ "kind": "status", "on": "cdn", "status": 416 }), "shorter there"),
        (json!({ "kind": "status", "on": "resolve", "status": 451 }), "answers 451"),
        (json!({ "kind": "unsaid", "on": "cdn" }), "where it is"),
        (json!({ "kind": "shift", "on": "cdn", "by": 1 }), "when asked for"),
        (json!({ "kind": "short", "on": "cdn", "bytes": 10 }), "when asked for"),
        (
            json!({ "kind": "status", "on": "resolve", "status": 429, "headers": { "Retry-After": "3600" } }),
            "answers 429",
        ),
    ];
    for (number, (fault, words)) in faults.into_iter().enumerate() {
        lab.fetch.folder = lab.home.path().join(format!("weights/{number}")).display().to_string();
        let before = lab.hub.requests().len();
        lab.hub.fault(fault.clone());
        let refusal = lab.refusal();
        lab.hub.heal();
        assert!(matches!(&refusal, Refusal::Hub { text, .. } if text.contains(words)), "{fault}: {refusal:?}");
        let requests = lab.hub.requests_since(before).len();
        assert!(requests <= 60, "{fault}: {requests} requests");
    }
    lab.hub.fault(json!({ "kind": "alter", "on": "cdn", "at": 9_000_000 }));
    lab.fetch.folder = lab.home.path().join("weights/altered").display().to_string();
    assert!(matches!(lab.refusal(), Refusal::Digest { .. }));
    let left: Vec<PathBuf> =
        std::fs::read_dir(&lab.fetch.folder).expect("made").flatten().map(|entry| entry.path()).collect();
    assert!(!left.iter().any(|path| path.to_string_lossy().contains("big")), "{left:?}");
}

#[test]
fn what_the_hub_refuses_has_words_of_its_own() {
    let lab = Lab::new(&[("a.gguf", b"abc")]);
    let refused = |repository: &str, commit: &str, name: &str, token: Option<&str>| {
        let mut fetch = lab.fetch.clone();
        fetch.files[0].name = name.into();
        let from =
            HubFiles { endpoint: lab.hub.endpoint().into(), repository: repository.into(), commit: commit.into() };
        let token = token.map(|token| Secret::new(token.to_owned()));
        let before = lab.hub.requests().len();
        let mut link = lab.home.connect();
        let mut answer = link.ask(&Request::Download { fetch, from, token, limit_bytes_per_s: None });
        while matches!(answer, Response::Progress { .. }) {
            answer = link.next();
        }
        let Response::Refused { refusal: Refusal::Hub { status, text, .. } } = answer else { panic!("{answer:?}") };
        assert_eq!(lab.hub.requests_since(before).len(), 1, "{text}: asked again");
        (status.expect("an answer"), text)
    };
    lab.hub.repository("owner/gated", &json!({ "commit": COMMIT, "gated": "auto" }), &[("a.gguf", b"abc")]);
    for (repository, commit, name, token, status, words) in [
        ("owner/model", COMMIT, "b.gguf", None, 404, "no file b.gguf"),
        ("owner/model", &"9".repeat(40), "a.gguf", None, 404, "no commit 999"),
        ("owner/other", COMMIT, "a.gguf", Some(TOKEN), 404, "no repository owner/other"),
        ("owner/other", COMMIT, "a.gguf", None, 401, "no token was sent"),
        ("owner/model", COMMIT, "a.gguf", Some("wrong"), 401, "refuses the token"),
        ("owner/gated", COMMIT, "a.gguf", None, 401, "no token was sent"),
        ("owner/gated", COMMIT, "a.gguf", Some(TOKEN), 403, "has not accepted its terms"),
    ] {
        let (found, text) = refused(repository, commit, name, token);
        assert!(found == status && text.contains(words), "{found} {text}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_the_hub_is_asked() {
    let mut lab = Lab::new(&[("a.gguf", b"abc"), ("b.gguf", b"abc")]);
    for file in &mut lab.fetch.files {
        file.size_bytes = 1 << 49;
    }
    let Refusal::Disk { needed_bytes, .. } = lab.refusal() else { panic!("it began") };
    assert!(needed_bytes == 1 << 50 && lab.hub.requests().is_empty());
}

#[test]
fn a_silent_content_network_is_dropped_after_half_a_minute() {
    let big = content(20_000_000);
    let lab = Lab::new(&[("big.gguf", &big)]);
    lab.hub.fault(json!({ "kind": "stall", "on": "cdn", "bytes": 1_000_000, "times": 1 }));
    lab.hub.fault(json!({ "kind": "trickle", "on": "cdn", "rate": 100, "times": 1, "after": 1 }));
    let began = Instant::now();
    lab.arrives();
    assert!(began.elapsed() >= Duration::from_secs(29), "{:?}", began.elapsed());
    assert!(lab.hub.requests().len() <= 12);
}

/// A throwaway authority and a certificate of its for this machine's loopback, with its key.
fn authority(folder: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let path = |name: &str| folder.join(name).display().to_string();
    let run = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).stdin(Stdio::null()).output().expect("openssl is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let (ca, ca_key, key, request, certificate) =
        (path("ca.pem"), path("ca.key"), path("key.pem"), path("request.pem"), path("certificate.pem"));
    let extensions = path("extensions");
    std::fs::write(&extensions, "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n")
        .expect("written");
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    run(&[&new[..], &["-x509", "-days", "30", "-subj", "/CN=A throwaway authority", "-keyout", &ca_key, "-out", &ca]]
        .concat());
    run(&[&new[..], &["-subj", "/CN=localhost", "-keyout", &key, "-out", &request]].concat());
    let sign = ["x509", "-req", "-days", "30", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
    run(&[&sign[..], &["-extfile", &extensions, "-out", &certificate]].concat());
    (ca.into(), certificate.into(), key.into())
}

/// A proxy that tunnels wherever it is asked to, and remembers where that was.
fn proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|read| read > 0) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let server = TcpStream::connect(&target);
                log.lock().expect("sound").push(head);
                let Ok(server) = server else { return };
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").expect("sent");
                let (mut from_client, mut to_server) =
                    (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
                std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
                let (mut from_server, mut to_client) = (server, client);
                let _ = std::io::copy(&mut from_server, &mut to_client);
                let _ = to_client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (format!("http://me:pass%20word@{address}"), asked)
}

#[test]
fn certificates_and_proxies_are_those_of_the_node() {
    let keys = tempfile::tempdir().expect("a folder");
    let (ca, certificate, key) = authority(keys.path());
    let big = content(20_000_000);
    let options = HubOptions { tls: Some((certificate, key)), ..HubOptions::default() };
    let mut lab = Lab::with(StandInHub::start_with(&options), json!({}), &[("big.gguf", &big), ("config.json", b"{}")]);
    lab.token = Some(Secret::new(TOKEN.into()));
    assert!(lab.hub.endpoint().starts_with("https://"));
    // Whom the node does not know it does not talk to, and it says no token.
    let Refusal::Hub { status: None, text, hint } = lab.refusal() else { panic!("it was trusted") };
    assert!(text.contains("not trusted") && hint.contains("SSL_CERT_FILE"), "{text} {hint}");
    assert!(lab.hub.requests().is_empty());
    let names = |lab: &mut Lab, folder: &str, variables: &[(&str, &str)]| {
        lab.home.environment =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        lab.home.environment.push(("SSL_CERT_FILE".into(), ca.display().to_string()));
        lab.fetch.folder = lab.home.path().join(folder).display().to_string();
    };
    names(&mut lab, "direct", &[("NO_PROXY", "")]);
    lab.arrives();
    let (address, asked) = proxy();
    names(&mut lab, "excepted", &[("HTTPS_PROXY", &address), ("NO_PROXY", "localhost,127.0.0.0/8")]);
    lab.arrives();
    assert!(asked.lock().expect("sound").is_empty());
    names(&mut lab, "through", &[("HTTPS_PROXY", &address), ("NO_PROXY", "elsewhere.example")]);
    lab.arrives();
    let heads = asked.lock().expect("sound").clone();
    assert!((1..=10).contains(&heads.len()), "{} connections", heads.len());
    for head in heads {
        assert!(head.starts_with("CONNECT 127.0.0.1:") && !head.contains(TOKEN), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk"), "{head}");
    }
    // A proxy that is not there is said, without its login.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    names(&mut lab, "lost", &[("https_proxy", &format!("http://me:password@{closed}"))]);
    let count = AtomicUsize::new(0);
    let mut link = lab.begin();
    drop(link.input.take());
    let refusal = loop {
        match link.next() {
            Response::Progress { .. } => count.fetch_add(1, Ordering::Relaxed),
            Response::Refused { refusal } => break refusal,
            other => panic!("{other:?}"),
        };
    };
    assert!(matches!(&refusal, Refusal::Hub { text, .. } if !text.contains("password")), "{refusal:?}");
    assert!(count.into_inner() > 10, "it was told all along that nothing came");
}
