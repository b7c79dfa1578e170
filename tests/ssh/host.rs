//! Real sshd hosts on loopback, real ssh-agents, and the ways to them.

use super::*;

/// A host: one sshd with keys, a home and a port of its own. It ends with the test.
pub struct Host {
    pub folder: TempDir,
    pub port: u16,
    pub sshd: Child,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; apt-get install -y openssh-server"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

pub fn keygen(path: &Path, kind: &str, passphrase: &str) {
    run("ssh-keygen", &["-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path.to_str().expect("UTF-8")]);
}

/// Whether an sshd came up; `false` where another program took its port.
pub fn listens(sshd: &mut Child, log: &Path) -> bool {
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
    pub fn start() -> Self {
        Self::with(&["ed25519"], "")
    }

    pub fn with(host_keys: &[&str], more: &str) -> Self {
        let sshd =
            ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|p| Path::new(p).exists());
        let sshd = sshd.expect("no sshd on this machine; apt-get install -y openssh-server");
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
             UseDNS no\nSetEnv \"HOME={}\"\nMaxStartups 100:30:200\n{more}",
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

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn home(&self) -> PathBuf {
        self.at("home of it's own")
    }

    pub fn public_key(&self, kind: &str) -> String {
        let line = fs::read_to_string(self.at(&format!("host_{kind}.pub"))).expect("there");
        line.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    pub fn trust(&self, kinds: &[&str], port: u16) {
        let lines = kinds.iter().map(|kind| format!("[127.0.0.1]:{port} {}\n", self.public_key(kind)));
        fs::write(self.at("known_hosts"), lines.collect::<String>()).expect("written");
    }

    pub fn target(&self) -> SshTarget {
        SshTarget {
            node: "ada-1".to_owned(),
            cluster: "lab".to_owned(),
            address: "127.0.0.1".to_owned(),
            port: Some(self.port),
            identities: vec![self.at("id")],
            known_hosts: Some(self.at("known_hosts")),
            connect_timeout: Some(Duration::from_secs(20)),
            ..SshTarget::default()
        }
    }

    /// This machine as somebody has it whose home is `user` beside the host's.
    pub fn environment(&self) -> SshEnvironment {
        let home = self.at("user");
        SshEnvironment {
            config: home.join(".ssh/config"),
            system_config: self.at("ssh_config"),
            home,
            user: run("id", &["-un"]),
            agent_socket: None,
        }
    }

    pub fn network(&self) -> Arc<SshNetwork> {
        network(self.environment(), agents())
    }

    pub fn transport(&self) -> SshTransport {
        SshTransport::new(self.target(), self.network())
    }

    /// The agents on the host, by name.
    pub fn pushed(&self) -> Vec<PathBuf> {
        let folder = self.home().join(".local/share/flock/agents");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        names.sort();
        names
    }

    /// Lets the sshd read its files again.
    pub fn reload(&self) {
        let count = || fs::read_to_string(self.at("log")).unwrap_or_default().matches("Server listening on").count();
        let before = count();
        run("kill", &["-HUP", &self.sshd.id().to_string()]);
        for _ in 0..400 {
            if count() > before {
                return;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("sshd does not come back: {}", fs::read_to_string(self.at("log")).unwrap_or_default());
    }

    /// Writes the SSH config of the user beside the host.
    pub fn user_config(&self, text: &str) -> PathBuf {
        let folder = self.at("user/.ssh");
        fs::create_dir_all(&folder).expect("made");
        let path = folder.join("config");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        path
    }

    /// How many logins the sshd accepted.
    pub fn logins(&self) -> usize {
        fs::read_to_string(self.at("log")).unwrap_or_default().matches("Accepted publickey").count()
    }

    /// A target that only the SSH config explains.
    pub fn by_alias(&self, alias: &str) -> SshTarget {
        SshTarget {
            node: "ada-1".to_owned(),
            cluster: "lab".to_owned(),
            address: alias.to_owned(),
            ..SshTarget::default()
        }
    }
}

/// A real ssh-agent, which ends with the test.
pub struct KeyAgent {
    pub socket: PathBuf,
    pub child: Child,
}

impl Drop for KeyAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl KeyAgent {
    pub fn start(socket: PathBuf) -> Self {
        let child = Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).spawn();
        let agent = Self { socket, child: child.expect("ssh-agent starts") };
        for _ in 0..200 {
            if agent.socket.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        agent
    }

    pub fn add(&self, path: &Path) {
        let done = Command::new("ssh-add").arg("-q").arg(path).env("SSH_AUTH_SOCK", &self.socket).status();
        assert!(done.expect("ssh-add is there").success());
    }
}

pub fn agents() -> AgentBinaries {
    // A folder of its own: beside the built one `scripts/build` may have put the one that it ships.
    static FOLDER: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        fs::copy(env!("CARGO_BIN_EXE_flock-agent"), folder.path().join("flock-agent")).expect("the agent was built");
        folder
    });
    AgentBinaries { directory: Some(folder.path().to_path_buf()) }
}

pub fn network(environment: SshEnvironment, agents: AgentBinaries) -> Arc<SshNetwork> {
    Arc::new(SshNetwork::new(environment, agents, Arc::new(|_| {})))
}

pub fn probe() -> Request {
    Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() }
}

pub async fn failure(transport: SshTransport) -> NodeError {
    transport.open_agent().await.err().expect("it must fail")
}
