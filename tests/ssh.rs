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
use flock::edge::{AgentBinaries, AgentNode, SshTarget, SshTransport};
use flock::inventory::{FetchFile, FetchSpec, Request, Response};
use flock::ports::{Node as _, NodeError, Transport as _};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A host: one sshd with keys, a home and a port of its own. It ends with the test.
struct Host {
    folder: TempDir,
    port: u16,
    sshd: Child,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; apt-get install -y openssh-server"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

fn keygen(path: &Path, kind: &str, passphrase: &str) {
    run("ssh-keygen", &["-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path.to_str().expect("UTF-8")]);
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Whether an sshd came up; `false` where another program took its port.
fn listens(sshd: &mut Child, log: &Path) -> bool {
    for _ in 0..400 {
        if fs::read_to_string(log).is_ok_and(|text| text.contains("Server listening on")) {
            return true;
        }
        if sshd.try_wait().expect("a child").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let _ = sshd.kill();
    let _ = sshd.wait();
    false
}

impl Host {
    fn start() -> Self {
        Self::with(&["ed25519"], "")
    }

    fn with(host_keys: &[&str], more: &str) -> Self {
        let sshd =
            ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|p| Path::new(p).exists());
        let sshd = sshd.expect("no sshd on this machine; apt-get install -y openssh-server openssh-sftp-server");
        let _ = fs::create_dir_all("/run/sshd");
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("home of it's own")).expect("made");
        keygen(&at("id"), "ed25519", "");
        fs::copy(at("id.pub"), at("authorized_keys")).expect("copied");
        let mut config = String::new();
        for kind in host_keys {
            keygen(&at(&format!("host_{kind}")), kind, "");
            config.push_str(&format!("HostKey {}\n", at(&format!("host_{kind}")).display()));
        }
        config.push_str(&format!(
            "ListenAddress 127.0.0.1\nPidFile none\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             UseDNS no\nSubsystem sftp internal-sftp\nSetEnv \"HOME={}\"\nMaxStartups 100:30:200\n{more}",
            at("authorized_keys").display(),
            at("home of it's own").display(),
        ));
        fs::write(at("sshd_config"), config).expect("written");
        for _ in 0..20 {
            let port = free_port();
            let log = fs::File::create(at("log")).expect("made");
            let mut child = Command::new(sshd)
                .args(["-D", "-e", "-p", &port.to_string(), "-f"])
                .arg(at("sshd_config"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("sshd starts");
            if listens(&mut child, &at("log")) {
                let host = Self { folder, port, sshd: child };
                host.trust(host_keys, port);
                return host;
            }
        }
        panic!("sshd does not start: {}", fs::read_to_string(at("log")).unwrap_or_default());
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn home(&self) -> PathBuf {
        self.at("home of it's own")
    }

    fn public_key(&self, kind: &str) -> String {
        let line = fs::read_to_string(self.at(&format!("host_{kind}.pub"))).expect("there");
        line.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    fn trust(&self, kinds: &[&str], port: u16) {
        let lines = kinds.iter().map(|kind| format!("[127.0.0.1]:{port} {}\n", self.public_key(kind)));
        fs::write(self.at("known_hosts"), lines.collect::<String>()).expect("written");
    }

    fn target(&self) -> SshTarget {
        SshTarget {
            node: "ada-1".to_owned(),
            address: "127.0.0.1".to_owned(),
            port: self.port,
            user: run("id", &["-un"]),
            identities: vec![self.at("id")],
            known_hosts: self.at("known_hosts"),
            connect_timeout: Duration::from_secs(20),
            cluster: "lab".to_owned(),
        }
    }

    fn transport(&self) -> SshTransport {
        SshTransport::new(self.target(), agents())
    }

    /// The agents on the host, by name.
    fn pushed(&self) -> Vec<PathBuf> {
        let folder = self.home().join(".local/share/flock/agents");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        names.sort();
        names
    }
}

fn agents() -> AgentBinaries {
    // A folder of its own: beside the built one `scripts/build` may have put the one that it ships.
    static FOLDER: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        fs::copy(env!("CARGO_BIN_EXE_flock-agent"), folder.path().join("flock-agent")).expect("the agent was built");
        folder
    });
    AgentBinaries { directory: Some(folder.path().to_path_buf()) }
}

fn probe() -> Request {
    Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() }
}

async fn failure(transport: SshTransport) -> NodeError {
    transport.open_agent().await.err().expect("it must fail")
}

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
    let error = failure(SshTransport::new(host.target(), agents)).await;
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
    let error = failure(SshTransport::new(target.clone(), agents())).await;
    let text = error.to_string();
    for expected in ["missing (cannot be read", "locked (encrypted", "id.pub (no usable", "stranger (ssh-ed25519)"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(matches!(error, NodeError::Authentication { .. }));

    target.port = free_port();
    let error = failure(SshTransport::new(target, agents())).await;
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
        let opened = SshTransport::new(target, agents()).open_agent().await;
        assert!(opened.is_ok(), "{text}: {:?}", opened.err());
    }
}

/// The environment names the ssh-agent, so the check runs in a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_ssh_agent_log_in() {
    const HOME: &str = "FLOCK_TEST_AGENT_HOME";
    if let Ok(folder) = std::env::var(HOME) {
        let port = fs::read_to_string(format!("{folder}/port")).expect("there").parse().expect("a port");
        let target = SshTarget {
            node: "ada-1".to_owned(),
            address: "127.0.0.1".to_owned(),
            port,
            user: run("id", &["-un"]),
            identities: vec![format!("{folder}/locked").into()],
            known_hosts: format!("{folder}/known_hosts").into(),
            connect_timeout: Duration::from_secs(20),
            cluster: "lab".to_owned(),
        };
        SshTransport::new(target, agents()).open_agent().await.expect("the agent's keys were taken");
        return;
    }
    let host = Host::with(&["ed25519"], "MaxAuthTries 2\n");
    let socket = host.at("agent.sock");
    let mut agent =
        Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).spawn().expect("starts");
    // Strangers first: the key of the encrypted file must be offered before them.
    let add = |path: &Path| {
        let done = Command::new("ssh-add").arg("-q").arg(path).env("SSH_AUTH_SOCK", &socket).status();
        assert!(done.expect("ssh-add is there").success());
    };
    for _ in 0..200 {
        if socket.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    for name in ["one", "two", "three"] {
        keygen(&host.at(name), "ed25519", "");
        add(&host.at(name));
    }
    keygen(&host.at("locked"), "rsa", "");
    add(&host.at("locked"));
    fs::copy(host.at("locked.pub"), host.at("authorized_keys")).expect("copied");
    run("ssh-keygen", &["-q", "-p", "-P", "", "-N", "secret", "-f", host.at("locked").to_str().expect("UTF-8")]);
    fs::write(host.at("port"), host.port.to_string()).expect("written");
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "keys_of_ssh_agent_log_in", "--nocapture"])
        .env("SSH_AUTH_SOCK", &socket)
        .env(HOME, host.folder.path())
        .output()
        .expect("it starts");
    let _ = agent.kill();
    let _ = agent.wait();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
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
    node.put(folder, &fetch, name, &|_| {}).await.expect("sent");
    assert!(fs::read(weights.join(name)).expect("there") == bytes);
    node.call(Request::FetchDone { fetch: fetch.clone() }).await.expect("complete");
    node.put(folder, &fetch, name, &|_| {}).await.expect("nothing to send");
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
    let node = AgentNode::new(Arc::new(SshTransport::new(SshTarget { port: relay_port, ..host.target() }, agents())));
    for round in 0..3 {
        node.call(Request::Instances).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        cut.send(()).expect("somebody listens");
        tokio::time::sleep(Duration::from_millis(50 * round)).await;
    }
}
