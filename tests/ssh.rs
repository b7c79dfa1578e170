//! Nodes over SSH against a real sshd on loopback, with a real node agent.
#![cfg(all(feature = "agent", feature = "controller"))]
#![expect(clippy::disallowed_methods, reason = "the test starts servers and lays out files")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flock::base::Digest;
use flock::edge::{AgentBinaries, AgentNode, SshEnvironment, SshNetwork, SshTarget, SshTransport};
use flock::inventory::{FetchFile, FetchSpec, Request, Response};
use flock::ports::{FileSource, Node as _, NodeError, Transport as _};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[path = "ssh/host.rs"]
mod host;
#[path = "support/ports.rs"]
mod ports;

use host::*;
use ports::free_port;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_pushed_once_and_answers() {
    let host = Host::start();
    fs::write(host.home().join(".bashrc"), "echo Welcome to the lab; echo and mind the gap >&2\n").expect("written");
    let node = AgentNode::new(Arc::new(host.transport()));
    let Response::Facts { node: facts, .. } = node.call(probe()).await.expect("probed") else { panic!("no facts") };
    assert_eq!(facts.name, "ada-1");
    assert_eq!(node.host_key().await, Some(host.public_key("ed25519")));

    let pushed = host.pushed();
    assert_eq!(pushed.len(), 1, "{pushed:?}");
    let metadata = fs::metadata(&pushed[0]).expect("there");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o700);
    let digest = Digest::of(&fs::read(env!("CARGO_BIN_EXE_flock-agent")).expect("built"));
    assert!(pushed[0].ends_with(format!("flock-agent-{}", digest.short(16))), "{pushed:?}");

    let again = AgentNode::new(Arc::new(host.transport()));
    again.call(Request::Instances).await.expect("answered");
    assert_eq!(fs::metadata(&host.pushed()[0]).expect("there").ino(), metadata.ino(), "it was pushed twice");
    node.close().await;
    assert!(matches!(node.call(Request::Instances).await, Ok(Response::Instances { .. })), "it connects again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_agent_is_replaced_and_two_pushes_do_not_collide() {
    let host = Host::start();
    let (one, two) = (host.transport(), host.transport());
    let (one, two) = tokio::join!(one.open_agent(), two.open_agent());
    one.expect("started");
    two.expect("started");
    let pushed = host.pushed();
    assert_eq!(pushed.len(), 1, "nothing half-done stays: {pushed:?}");

    let size = fs::metadata(&pushed[0]).expect("there").len();
    let fresh = pushed[0].with_extension("new");
    fs::write(&fresh, vec![0_u8; usize::try_from(size).expect("small")]).expect("written");
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o700)).expect("set");
    fs::rename(&fresh, &pushed[0]).expect("renamed");
    let transport = host.transport();
    transport.open_agent().await.expect("the broken one was replaced");
    fs::remove_file(&pushed[0]).expect("removed");
    transport.open_agent().await.expect("one that vanished is brought again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_for_another_machine_says_so() {
    let host = Host::start();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("flock-agent"), b"\x7fELF no program").expect("written");
    let agents = AgentBinaries { directory: Some(folder.path().to_path_buf()) };
    let error = failure(SshTransport::new(host.target(), network(host.environment(), agents))).await;
    assert!(matches!(error, NodeError::Agent { .. }), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--agent-dir")), "{error}: {:?}", error.hint());
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_changed_keys_are_refused() {
    let host = Host::with(&["ed25519", "ecdsa"], "");
    let fingerprint = run("ssh-keygen", &["-l", "-f", host.at("host_ed25519.pub").to_str().expect("UTF-8")]);
    let fingerprint = fingerprint.split(' ').nth(1).expect("a fingerprint").to_owned();

    fs::write(host.at("known_hosts"), "").expect("written");
    match failure(host.transport()).await {
        NodeError::HostKeyUnknown { fingerprint: offered, .. } => assert_eq!(offered, fingerprint),
        other => panic!("{other}"),
    }
    fs::remove_file(host.at("known_hosts")).expect("removed");
    assert!(matches!(failure(host.transport()).await, NodeError::HostKeyUnknown { .. }));

    keygen(&host.at("other"), "ed25519", "");
    let other = fs::read_to_string(host.at("other.pub")).expect("there");
    let name = format!("[127.0.0.1]:{}", host.port);
    fs::write(host.at("known_hosts"), format!("# lab\n{name} {other}")).expect("written");
    assert!(matches!(failure(host.transport()).await, NodeError::HostKeyChanged { line: 2, .. }));

    let key = host.public_key("ed25519");
    fs::write(host.at("known_hosts"), format!("{name} {key}\n@revoked * {key}\n")).expect("written");
    assert!(matches!(failure(host.transport()).await, NodeError::HostKeyRevoked { line: 2, .. }));

    // Only the second key of the host is known: it is the one that is asked for.
    host.trust(&["ecdsa"], host.port);
    let transport = host.transport();
    transport.open_agent().await.expect("started");
    assert_eq!(transport.host_key().await, Some(host.public_key("ecdsa")));

    host.trust(&["ed25519"], host.port);
    run("ssh-keygen", &["-q", "-H", "-f", host.at("known_hosts").to_str().expect("UTF-8")]);
    host.transport().open_agent().await.expect("a hashed name is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_keys_are_named() {
    let host = Host::with(&["ed25519"], "MaxAuthTries 2\n");
    keygen(&host.at("stranger"), "ed25519", "");
    keygen(&host.at("locked"), "ed25519", "secret");
    let mut target = host.target();
    target.identities = vec![host.at("missing"), host.at("locked"), host.at("id.pub"), host.at("stranger")];
    let error = failure(SshTransport::new(target.clone(), host.network())).await;
    let text = error.to_string();
    for expected in ["missing (cannot be read", "locked (encrypted", "id.pub (a public key", "stranger (ssh-ed25519)"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(matches!(error, NodeError::Authentication { .. }));

    target.port = Some(free_port());
    let error = failure(SshTransport::new(target, host.network())).await;
    assert!(matches!(error, NodeError::Connect { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_key_logs_in() {
    let host = Host::start();
    for (kind, more) in [("rsa", &[][..]), ("ecdsa", &[]), ("rsa", &["-m", "PEM"]), ("ecdsa", &["-m", "PKCS8"])] {
        let path = host.at(&format!("id_{kind}_{}", more.len()));
        let text = path.to_str().expect("UTF-8");
        run("ssh-keygen", &[&["-q", "-t", kind, "-N", "", "-f", text], more].concat());
        fs::copy(path.with_extension("pub"), host.at("authorized_keys")).expect("copied");
        let target = SshTarget { identities: vec![path.clone()], ..host.target() };
        let opened = SshTransport::new(target, host.network()).open_agent().await;
        assert!(opened.is_ok(), "{text}: {:?}", opened.err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_ssh_agent_log_in() {
    let host = Host::with(&["ed25519"], "MaxAuthTries 2\n");
    let agent = KeyAgent::start(host.at("agent.sock"));
    // Strangers first: the key that the config names must be offered before them, for the server takes two attempts.
    for name in ["one", "two", "three"] {
        keygen(&host.at(name), "ed25519", "");
        agent.add(&host.at(name));
    }
    keygen(&host.at("locked"), "rsa", "");
    agent.add(&host.at("locked"));
    fs::copy(host.at("locked.pub"), host.at("authorized_keys")).expect("copied");
    run("ssh-keygen", &["-q", "-p", "-P", "", "-N", "secret", "-f", host.at("locked").to_str().expect("UTF-8")]);
    let environment = SshEnvironment { agent_socket: Some(agent.socket.clone()), ..host.environment() };
    let login = |identity: PathBuf, config: &str| {
        let folder = host.at("user/.ssh");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("config"), config).expect("written");
        let target = SshTarget { identities: vec![identity], ..host.target() };
        SshTransport::new(target, network(environment.clone(), agents()))
    };
    login(host.at("locked"), "").open_agent().await.expect("an encrypted file names its key in the agent");
    login(host.at("locked.pub"), "").open_agent().await.expect("so does a public key");
    fs::rename(host.at("locked"), host.at("elsewhere")).expect("renamed");
    login(host.at("locked"), "").open_agent().await.expect("so does one whose private half is not here");

    let error = failure(login(host.at("one"), "IdentitiesOnly yes\n")).await.to_string();
    assert!(error.contains("IdentitiesOnly") && !error.contains("ssh-agent's"), "{error}");
    let error = failure(login(host.at("one"), "")).await.to_string();
    assert!(error.contains("the server hung up") && error.contains("identity="), "{error}");
    let other = host.at("no.sock").display().to_string();
    let error = failure(login(host.at("locked"), &format!("Host 127.*\n  IdentityAgent {other}\n"))).await.to_string();
    assert!(error.contains("no.sock (no answer"), "the agent that the config names is asked: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_and_files_go_through_the_connection() {
    let host = Host::start();
    let node = AgentNode::new(Arc::new(host.transport()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let mut stream = node.open_port(port).await.expect("opened");
    let (mut far, _) = listener.accept().await.expect("accepted");
    stream.write_all(b"ping").await.expect("written");
    let mut four = [0_u8; 4];
    far.read_exact(&mut four).await.expect("read");
    assert_eq!(&four, b"ping");
    drop(listener);
    let error = node.open_port(free_port()).await.err().expect("nothing listens");
    assert!(matches!(error, NodeError::Connect { .. }), "{error}");

    let source = tempfile::tempdir().expect("a folder");
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let name = "it's a $(model).gguf";
    fs::write(source.path().join(name), &bytes).expect("written");
    let weights = host.home().join("weights");
    let file = FetchFile {
        name: name.to_owned(),
        size_bytes: bytes.len() as u64,
        sha256: Some(Digest::of(&bytes).to_string()),
    };
    let fetch = FetchSpec {
        source: "path:/m".to_owned(),
        revision: Digest::of(b"revision").to_string(),
        folder: weights.to_str().expect("UTF-8").to_owned(),
        files: vec![file],
    };
    let folder = source.path().to_str().expect("UTF-8");
    node.put(FileSource::Folder(folder), &fetch, name, None, &|_| {}).await.expect("sent");
    assert!(fs::read(weights.join(name)).expect("there") == bytes);
    node.call(Request::FetchDone { fetch: fetch.clone() }).await.expect("complete");
    node.put(FileSource::Folder(folder), &fetch, name, None, &|_| {}).await.expect("nothing to send");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_again() {
    let host = Host::start();
    // A relay in front of the sshd, whose connections can be cut.
    let relay = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let relay_port = relay.local_addr().expect("an address").port();
    let (cut, _) = tokio::sync::broadcast::channel::<()>(4);
    let (cut_here, sshd_port) = (cut.clone(), host.port);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = relay.accept().await {
            let mut cut = cut_here.subscribe();
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(("127.0.0.1", sshd_port)).await.expect("connected");
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = cut.recv() => {}
                }
            });
        }
    });
    host.trust(&["ed25519"], relay_port);
    let node = AgentNode::new(Arc::new(SshTransport::new(
        SshTarget { port: Some(relay_port), ..host.target() },
        host.network(),
    )));
    for round in 0..3 {
        node.call(Request::Instances).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        cut.send(()).expect("somebody listens");
        tokio::time::sleep(Duration::from_millis(50 * round)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ssh_config_leads_to_a_node() {
    let host = Host::start();
    keygen(&host.at("stranger"), "ed25519", "");
    let more = host.at("user/.ssh/more");
    fs::create_dir_all(&more).expect("made");
    fs::write(more.join("lab.conf"), format!("Host box\n  HostName 127.0.0.1\n  Port {}\n", host.port))
        .expect("written");
    let (stranger, id, known) = (host.at("stranger"), host.at("id"), host.at("known_hosts"));
    let rest = format!(
        "Include more/*.conf\nInclude missing/*\nHost box\n  IdentityFile {}\n  IdentityFile {}\n  \
         UserKnownHostsFile /nonexistent {}\n  StrictHostKeyChecking no\n  CheckHostIP no\n  ControlMaster auto\n",
        stranger.display(),
        id.display(),
        known.display()
    );
    let config = host.user_config(&rest);
    let transport = SshTransport::new(host.by_alias("box"), host.network());
    transport.open_agent().await.expect("started");
    assert_eq!(transport.host_key().await, Some(host.public_key("ed25519")));
    let reached = host.network().reached(&host.by_alias("box")).expect("read");
    assert_eq!((reached.host.as_str(), reached.port, reached.jump.len()), ("127.0.0.1", host.port, 0));

    // ssh's word on trust is not flock's.
    fs::write(host.at("known_hosts"), "").expect("written");
    for word in ["no", "accept-new"] {
        host.user_config(&rest.replace("StrictHostKeyChecking no", &format!("StrictHostKeyChecking {word}")));
        let error = failure(SshTransport::new(host.by_alias("box"), host.network())).await;
        assert!(matches!(error, NodeError::HostKeyUnknown { .. }), "{error}");
    }
    assert_eq!(fs::read_to_string(host.at("known_hosts")).expect("there"), "");

    for (text, place, word) in [
        ("Host box\n  ProxyCommand nc %h %p\n", ":2: ", "ProxyCommand"),
        ("Host x\n  Port 1\nMatch exec true\n  HostName 127.0.0.1\n", ":3: ", "Match"),
        ("\nPort none\n", ":2: ", "no port"),
        ("Host box\n  ProxyJump box\n", "the way to `box`: ", "reach itself"),
    ] {
        host.user_config(text);
        let error = failure(SshTransport::new(host.by_alias("box"), host.network())).await;
        assert!(matches!(error, NodeError::SshConfig { .. }), "{text}: {error}");
        let shown = error.to_string();
        assert!(shown.contains(place) && shown.contains(word) && error.hint().is_some(), "{text}: {shown}");
    }
    host.user_config("");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o666)).expect("set");
    let error = failure(SshTransport::new(host.by_alias("box"), host.network())).await.to_string();
    assert!(error.contains("others may write it"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_nodes_share_one_jump_connection() {
    let (hop, node) = (Host::with(&["ed25519"], "MaxSessions 1\n"), Host::start());
    let both = |file: &Path| {
        let lines = [fs::read_to_string(hop.at("known_hosts")), fs::read_to_string(node.at("known_hosts"))];
        fs::write(file, lines.map(|text| text.expect("there")).concat()).expect("written");
    };
    let known = node.at("both");
    both(&known);
    fs::copy(hop.at("authorized_keys"), node.at("authorized_keys")).expect("copied");
    let jump = |text: &str| Some(flock::base::Hop::parse_row(text).expect("hops"));
    let through = format!("127.0.0.1:{}", hop.port);
    let target = |number: usize| SshTarget {
        node: format!("ada-{number}"),
        identities: vec![hop.at("id")],
        known_hosts: Some(known.clone()),
        jump: jump(&through),
        ..node.target()
    };
    let network = node.network();
    let transports: Vec<SshTransport> =
        (0..16).map(|number| SshTransport::new(target(number), Arc::clone(&network))).collect();
    let opened = futures::future::join_all(transports.iter().map(|transport| transport.open_agent())).await;
    for stream in opened {
        stream.expect("started");
    }
    assert_eq!((hop.logins(), node.logins()), (1, 16));
    assert_eq!(transports[3].host_key().await, Some(node.public_key("ed25519")), "the node's, not the hop's");
    for transport in &transports {
        transport.close().await;
    }

    // The hop's own key is checked, and its errors name it.
    fs::copy(node.at("known_hosts"), &known).expect("copied");
    let error = failure(SshTransport::new(target(0), node.network())).await;
    let shown = error.to_string();
    assert!(shown.starts_with(&format!("jump host {through}: the host key of {through} is not known")), "{shown}");
    assert!(error.hint().is_some_and(|hint| hint.contains("ssh-keyscan -p")), "{error}");
    // So is the node's behind it: nobody outside can scan it, so the hint goes through the hop.
    fs::copy(hop.at("known_hosts"), &known).expect("copied");
    let error = failure(SshTransport::new(target(0), node.network())).await;
    let hint = error.hint().unwrap_or_default();
    assert!(matches!(error, NodeError::HostKeyUnknown { .. }), "{error}");
    assert!(hint.contains(&format!("ssh -p {} ", hop.port)) && hint.contains("ssh-keyscan -p"), "{hint}");
    both(&known);
    let error = failure(SshTransport::new(SshTarget { port: Some(free_port()), ..target(0) }, node.network())).await;
    assert!(error.to_string().contains(&format!("the jump host {through} does not reach it")), "{error}");
    let nowhere = SshTarget { jump: jump(&format!("127.0.0.1:{}", free_port())), ..target(0) };
    let error = failure(SshTransport::new(nowhere, node.network())).await;
    assert!(matches!(error, NodeError::Jump { .. }), "{error}");
    // Two hops in a row, from the SSH config, the first one by an alias.
    node.user_config(&format!(
        "Host gate\n  HostName 127.0.0.1\n  Port {}\nHost box\n  HostName 127.0.0.1\n  Port {}\n  ProxyJump gate,127.0.0.1:{}\n",
        hop.port, node.port, hop.port
    ));
    let by_config = SshTarget { address: "box".to_owned(), port: None, jump: None, ..target(0) };
    let network = node.network();
    let before = hop.logins();
    SshTransport::new(by_config.clone(), Arc::clone(&network)).open_agent().await.expect("started");
    assert_eq!(hop.logins() - before, 2);
    let user = run("id", &["-un"]);
    let way = flock::base::Hop::join(&network.reached(&by_config).expect("read").jump);
    assert_eq!(way, format!("{user}@127.0.0.1:{},{user}@127.0.0.1:{}", hop.port, hop.port));

    fs::write(
        hop.at("sshd_config"),
        fs::read_to_string(hop.at("sshd_config")).expect("there") + "AllowTcpForwarding no\n",
    )
    .expect("written");
    hop.reload();
    let error = failure(SshTransport::new(target(0), node.network())).await;
    assert!(error.to_string().contains("forbids forwarding"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_certificates_are_checked() {
    let host = Host::with(&["ed25519"], "");
    let cert = host.at("host_ed25519-cert.pub");
    let text = fs::read_to_string(host.at("sshd_config")).expect("there");
    fs::write(host.at("sshd_config"), format!("{text}HostCertificate {}\n", cert.display())).expect("written");
    keygen(&host.at("ca"), "ed25519", "");
    keygen(&host.at("other_ca"), "ecdsa", "");
    let path = |name: &str| host.at(name).to_str().expect("UTF-8").to_owned();
    let sign = |authority: &str, more: &[&str]| {
        let key = path("host_ed25519.pub");
        run("ssh-keygen", &[&["-q", "-s", &path(authority), "-h", "-I", "ada"], more, &[&key]].concat());
        host.reload();
    };
    let public = |name: &str| {
        let line = fs::read_to_string(host.at(&format!("{name}.pub"))).expect("there");
        line.split(' ').take(2).collect::<Vec<_>>().join(" ")
    };
    let know = |more: &str| {
        let text = format!("@cert-authority 127.*,*.lab {}\n{more}", public("ca"));
        fs::write(host.at("known_hosts"), text).expect("written");
    };
    know("");
    sign("ca", &["-n", "ada,127.0.0.1"]);
    let transport = host.transport();
    transport.open_agent().await.expect("a good certificate");
    assert_eq!(transport.host_key().await, Some(host.public_key("ed25519")));
    fs::write(host.at("known_hosts"), format!("@cert-authority 10.* {}\n", public("ca"))).expect("written");
    let error = failure(host.transport()).await;
    assert!(matches!(error, NodeError::HostKeyUnknown { .. }), "an authority for other hosts: {error}");
    know(&format!("@revoked * {}\n", public("ca")));
    let error = failure(host.transport()).await;
    assert!(matches!(error, NodeError::HostKeyRevoked { line: 2, .. }), "a revoked authority: {error}");
    know(&format!("@revoked 127.0.0.1 {}\n", host.public_key("ed25519")));
    let error = failure(host.transport()).await;
    assert!(matches!(error, NodeError::HostKeyRevoked { line: 2, .. }), "a revoked key: {error}");

    know("");
    for (more, expected) in [
        (&["-n", "somebody"][..], "it is for somebody, not for 127.0.0.1"),
        (&["-n", "127.0.0.1", "-V", "-2d:-1d"], "it ran out"),
        (&["-n", "127.0.0.1", "-V", "+1d:+2d"], "it is valid only in"),
        (&[], "it names no host"),
        (&["-n", "127.0.0.1", "-O", "critical:odd@lab=1"], "critical option `odd@lab`"),
    ] {
        sign("ca", more);
        let error = failure(host.transport()).await;
        assert!(matches!(error, NodeError::HostCertificate { .. }), "{more:?}: {error}");
        assert!(error.to_string().contains(expected) && error.hint().is_some(), "{more:?}: {error}");
    }
    sign("ca", &["-n", "127.0.0.*"]);
    host.transport().open_agent().await.expect("principals may be patterns");
    // By an authority that nobody named, a certificate is worth what its key is.
    sign("other_ca", &["-n", "127.0.0.1"]);
    assert!(matches!(failure(host.transport()).await, NodeError::HostKeyUnknown { .. }));
    know(&format!("[127.0.0.1]:{} {}\n", host.port, host.public_key("ed25519")));
    host.transport().open_agent().await.expect("the key itself is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn first_use_is_trusted_only_where_the_config_says_so() {
    let host = Host::start();
    let known = host.at("user/.ssh/known_hosts");
    let target = SshTarget { known_hosts: None, ..host.target() };
    let error = failure(SshTransport::new(target.clone(), host.network())).await;
    let hint = error.hint().unwrap_or_default();
    let folder = known.parent().expect("a folder").display().to_string();
    assert!(hint.contains(&format!("mkdir -m 700 {folder} && ssh-keyscan")), "{hint}");
    assert!(!known.exists());

    let notes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&notes);
    let notice = Arc::new(move |text: &str| heard.lock().expect("not poisoned").push(text.to_owned()));
    let network = Arc::new(SshNetwork::new(host.environment(), agents(), notice));
    let trusting =
        |number: usize| SshTarget { node: format!("n-{number}"), trust_on_first_use: true, ..target.clone() };
    let transports: Vec<SshTransport> =
        (0..16).map(|number| SshTransport::new(trusting(number), Arc::clone(&network))).collect();
    for opened in futures::future::join_all(transports.iter().map(|transport| transport.open_agent())).await {
        opened.expect("started");
    }
    let line = format!("[127.0.0.1]:{} {}\n", host.port, host.public_key("ed25519"));
    assert_eq!(fs::read_to_string(&known).expect("there"), line, "one line, not sixteen");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&known), mode(known.parent().expect("a folder"))), (0o600, 0o700));
    let notes = notes.lock().expect("not poisoned").clone();
    assert!(notes.len() == 1 && notes[0].contains("SHA256:") && notes[0].contains(&folder), "{notes:?}");

    keygen(&host.at("new"), "ed25519", "");
    fs::copy(host.at("new"), host.at("host_ed25519")).expect("copied");
    host.reload();
    let error = failure(SshTransport::new(trusting(0), host.network())).await;
    assert!(matches!(error, NodeError::HostKeyChanged { line: 1, .. }), "{error}");
    assert_eq!(fs::read_to_string(&known).expect("there"), line);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recorded_key_counts_where_known_hosts_says_nothing() {
    let host = Host::start();
    keygen(&host.at("other"), "ed25519", "");
    let with = |key: String| SshTransport::new(SshTarget { recorded_key: Some(key), ..host.target() }, host.network());
    let other = fs::read_to_string(host.at("other.pub")).expect("there");
    let known = fs::read_to_string(host.at("known_hosts")).expect("there");
    with(other.clone()).open_agent().await.expect("known_hosts comes first");
    fs::write(host.at("known_hosts"), "").expect("written");
    with(host.public_key("ed25519")).open_agent().await.expect("an earlier apply verified it");
    let error = failure(with(other.clone())).await;
    assert!(matches!(error, NodeError::HostKeyDiffers { .. }) && error.hint().is_some(), "{error}");
    fs::write(host.at("known_hosts"), known.replace(&host.public_key("ed25519"), other.trim())).expect("written");
    let error = failure(with(host.public_key("ed25519"))).await;
    assert!(matches!(error, NodeError::HostKeyChanged { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_others_can_read_is_not_used() {
    let host = Host::start();
    fs::set_permissions(host.at("id"), fs::Permissions::from_mode(0o640)).expect("set");
    let error = failure(host.transport()).await.to_string();
    assert!(error.contains("id (mode 0640, others can read it, so it is not used: chmod 600)"), "{error}");
}

/// No security key is here: an agent that holds one and whose owner does not touch it answers like this.
#[tokio::test(flavor = "multi_thread")]
async fn a_security_key_in_the_agent_is_offered() {
    fn text(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).expect("short").to_be_bytes()[..], bytes].concat()
    }
    let host = Host::start();
    let kind = b"sk-ssh-ed25519@openssh.com";
    // A point of the curve: that of an ordinary key of the same kind.
    let ordinary = fs::read_to_string(host.at("id.pub")).expect("there");
    fs::write(host.at("base64"), ordinary.split(' ').nth(1).expect("a key")).expect("written");
    let output = Command::new("base64").arg("-d").arg(host.at("base64")).output().expect("base64 is there");
    let point = output.stdout[output.stdout.len() - 32..].to_vec();
    let blob = [text(kind), text(&point), text(b"ssh:")].concat();
    fs::write(host.at("blob"), &blob).expect("written");
    let encoded = run("base64", &["-w0", host.at("blob").to_str().expect("UTF-8")]);
    let line = format!("{} {encoded} key", String::from_utf8_lossy(kind));
    fs::write(host.at("authorized_keys"), &line).expect("written");
    fs::write(host.at("sk.pub"), &line).expect("written");

    let socket = host.at("agent.sock");
    let listener = tokio::net::UnixListener::bind(&socket).expect("bound");
    let (signs, mut asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (blob, signs) = (blob.clone(), signs.clone());
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u32().await {
                    let mut request = vec![0_u8; length as usize];
                    stream.read_exact(&mut request).await.expect("a request");
                    let answer = match request[0] {
                        11 => [&[12, 0, 0, 0, 1][..], &text(&blob), &text(b"yubi")].concat(),
                        13 => {
                            let _ = signs.send(request[1..].starts_with(&text(&blob)));
                            vec![5]
                        }
                        _ => vec![5],
                    };
                    stream.write_all(&text(&answer)).await.expect("written");
                }
            });
        }
    });
    let environment = SshEnvironment { agent_socket: Some(socket), ..host.environment() };
    let target = SshTarget { identities: vec![host.at("sk")], ..host.target() };
    let error = failure(SshTransport::new(target, network(environment, agents()))).await.to_string();
    assert!(error.contains("the security key did not sign: touch it"), "{error}");
    assert!(error.contains("yubi (sk-ssh-ed25519@openssh.com)"), "{error}");
    assert_eq!(asked.recv().await, Some(true), "the server took the key, so the agent was asked to sign with it");
}

#[tokio::test(flavor = "multi_thread")]
async fn noisy_and_narrow_logins_work() {
    let host = Host::with(&["ed25519"], "MaxSessions 1\nMaxStartups 100\n");
    // 20 MB on each output, and garbage that ends without a line.
    let noise = "yes 'all work and no play' 2>/dev/null | head -c 20000000; yes mind the gap | head -c 20000000 >&2\n\
                 printf '\\377\\000\\033[31mgarbage'; printf 'no end' >&2\n";
    fs::write(host.home().join(".bashrc"), noise).expect("written");
    let network = host.network();
    let transport = Arc::new(SshTransport::new(host.target(), Arc::clone(&network)));
    let first = transport.open_agent().await.expect("brought and started");
    let second = transport.open_agent().await.expect("a second session needs a second connection");
    let logins = host.logins();
    assert!((2..=3).contains(&logins), "{logins}");
    drop((first, second));
    let warm = SshTransport::new(host.target(), network);
    let _stream = warm.open_agent().await.expect("started");
    assert_eq!(host.logins() - logins, 1, "what is there needs one session");
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_shells_work_and_forced_commands_say_so() {
    let host = Host::with(&["ed25519"], "ForceCommand /bin/rbash -c \"$SSH_ORIGINAL_COMMAND\"\n");
    host.transport().open_agent().await.expect("a restricted shell runs sh");
    for (command, said) in [
        ("echo This account is for backups only.; exit 3", "backups only"),
        ("exec /usr/sbin/nologin", "not available"),
        ("cat >/dev/null", "nothing"),
    ] {
        let text = fs::read_to_string(host.at("sshd_config")).expect("there");
        let text: String =
            text.lines().filter(|line| !line.starts_with("ForceCommand")).map(|line| format!("{line}\n")).collect();
        fs::write(host.at("sshd_config"), format!("{text}ForceCommand {command}\n")).expect("written");
        host.reload();
        if said == "nothing" {
            // It waits for input that never comes: the look has a deadline, which is not worth a minute here.
            let transport = host.transport();
            let open = transport.open_agent();
            assert!(tokio::time::timeout(Duration::from_secs(1), open).await.is_err(), "it cannot have started");
            continue;
        }
        let error = failure(host.transport()).await;
        assert!(error.to_string().contains(said), "{command}: {error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("ForceCommand")), "{command}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_servers() {
    let host = Host::start();
    // One that says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = silent.local_addr().expect("an address").port();
    let target = SshTarget { port: Some(port), connect_timeout: Some(Duration::from_secs(2)), ..host.target() };
    let error = failure(SshTransport::new(target, host.network())).await;
    assert!(matches!(&error, NodeError::Deadline { step, .. } if step.contains("handshake")), "{error}");

    // One that speaks before its version, and hangs up on the first two callers as a busy one does.
    let relay = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = relay.local_addr().expect("an address").port();
    let sshd = host.port;
    tokio::spawn(async move {
        for call in 0.. {
            let (mut near, _) = relay.accept().await.expect("accepted");
            if call < 2 {
                near.write_all(b"Exceeded MaxStartups\r\n").await.expect("written");
                continue;
            }
            tokio::spawn(async move {
                near.write_all(b"Property of the lab.\r\nGo away.\n").await.expect("written");
                let mut far = tokio::net::TcpStream::connect(("127.0.0.1", sshd)).await.expect("connected");
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    host.trust(&["ed25519"], port);
    let target = SshTarget { port: Some(port), ..host.target() };
    SshTransport::new(target, host.network()).open_agent().await.expect("the third time");

    // One that is no SSH server at all.
    let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = web.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = web.accept().await {
            let _ = near.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = failure(SshTransport::new(SshTarget { port: Some(port), ..host.target() }, host.network())).await;
    assert!(matches!(error, NodeError::Connect { .. }) && error.to_string().contains("hangs up"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_survives_new_session_keys() {
    let host = Host::with(&["ed25519"], "RekeyLimit 8M\nLogLevel DEBUG1\n");
    let source = tempfile::tempdir().expect("a folder");
    let piece: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let bytes = piece.repeat(100);
    fs::write(source.path().join("w"), &bytes).expect("written");
    let fetch = FetchSpec {
        source: "path:/m".to_owned(),
        revision: Digest::of(b"revision").to_string(),
        folder: host.home().join("weights").to_str().expect("UTF-8").to_owned(),
        files: vec![FetchFile {
            name: "w".to_owned(),
            size_bytes: bytes.len() as u64,
            sha256: Some(Digest::of(&bytes).to_string()),
        }],
    };
    let node = AgentNode::new(Arc::new(host.transport()));
    node.put(FileSource::Folder(source.path().to_str().expect("UTF-8")), &fetch, "w", None, &|_| {})
        .await
        .expect("sent");
    assert!(fs::read(host.home().join("weights/w")).expect("there") == bytes);
    node.call(Request::Instances).await.expect("the connection lives");
    let rekeys = fs::read_to_string(host.at("log")).expect("there").matches("rekey").count();
    assert!(rekeys >= 10, "{rekeys} new keys");
}

/// The words of the config and those of ssh's together, from the command line.
#[test]
fn the_command_goes_through_the_jump_host_of_the_config() {
    let (hop, node) = (Host::start(), Host::start());
    fs::copy(hop.at("authorized_keys"), node.at("authorized_keys")).expect("copied");
    hop.user_config(&format!("Host box\n  HostName 127.0.0.1\n  Port {}\n", node.port));
    let repository = hop.at("repository");
    fs::create_dir(&repository).expect("made");
    let text = format!(
        "cluster \"lab\" {{ ssh jump=\"127.0.0.1:{}\" trust-on-first-use=#true identity=\"{}\" }}\nnode \"a\" address=\"box\"\n",
        hop.port,
        hop.at("id").display()
    );
    fs::write(repository.join("cluster.kdl"), text).expect("written");
    run("git", &["init", "-q", repository.to_str().expect("UTF-8")]);
    let discover = || {
        let output = Command::new(env!("CARGO_BIN_EXE_flock"))
            .arg("-C")
            .arg(&repository)
            .arg("--agent-dir")
            .arg(agents().directory.expect("a folder"))
            .args(["discover", "--format", "json"])
            .env("HOME", hop.at("user"))
            .env_remove("SSH_AUTH_SOCK")
            .output()
            .expect("flock was built");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("\"reachable\": true"), "{stderr}");
        stderr
    };
    let first = discover();
    for host in [&hop, &node] {
        assert!(first.contains(&format!("warning: 127.0.0.1:{}: its host key SHA256:", host.port)), "{first}");
    }
    assert_eq!(first.lines().count(), 2, "and nothing else: the words of the config are enforced: {first}");
    assert_eq!(discover(), "", "what is recorded is known");
    assert_eq!((hop.logins(), node.logins()), (2, 2));
    fs::write(hop.at("user/.ssh/config"), "Host box\n  ProxyCommand x\nMatch exec true\n  HostName y\n")
        .expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_flock"))
        .arg("-C")
        .arg(&repository)
        .arg("discover")
        .env("HOME", hop.at("user"))
        .output()
        .expect("flock was built");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{stderr}");
    assert!(stderr.contains(".ssh/config:3: a `Match` block that may apply to `box` sets `hostname`"), "{stderr}");
}
