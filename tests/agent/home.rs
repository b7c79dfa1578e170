//! A home with a node agent in it, connections to the agent, and instances that are shell scripts.

use super::*;

/// A home with its environment; ends everything that was started in it.
pub struct Home {
    pub folder: tempfile::TempDir,
    pub environment: Vec<(String, String)>,
}

/// One connection.
pub struct Link {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
}

impl Home {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a home"), environment: Vec::new() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn state(&self) -> PathBuf {
        self.path().join(".local/share/flock/lab/ada-1")
    }

    pub fn connect(&self) -> Link {
        let mut command = Command::new(AGENT);
        command.args(["serve", "--cluster", "lab", "--node", "ada-1"]);
        self.connect_by(command)
    }

    /// A connection to what a command starts.
    pub fn connect_by(&self, mut command: Command) -> Link {
        // The agent opens what it opens on the address that SSH came in on.
        command
            .env("HOME", self.path())
            .env("SSH_CONNECTION", "127.0.0.1 50022 127.0.0.1 22")
            .envs(self.environment.iter().cloned());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the agent starts");
        let (mut input, mut output) =
            (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        assert!(skip_to_hello(&mut output).expect("read"));
        writeln!(input, "a banner of a login shell\n{HELLO}").expect("written");
        Link { child, input: Some(input), output }
    }

    pub fn ask(&self, request: Request) -> Response {
        self.connect().ask(&request)
    }

    pub fn instances(&self) -> Vec<InstanceFacts> {
        match self.ask(Request::Instances) {
            Response::Instances { instances, .. } => instances,
            other => panic!("{other:?}"),
        }
    }

    pub fn probe(&self) -> NodeFacts {
        match self.ask(Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() }) {
            Response::Facts { node, .. } => *node,
            other => panic!("{other:?}"),
        }
    }

    pub fn start(&self, spec: &InstanceSpec) {
        let answer = self.ask(Request::Start { generation: 1, spec: Box::new(spec.clone()) });
        assert!(matches!(answer, Response::Instances { .. }), "{answer:?}");
    }

    pub fn stop(&self, instance: &str, grace_ms: u64) -> Response {
        self.ask(Request::Stop { generation: 1, instance: instance.into(), grace_ms, before_start: false })
    }

    /// The instance once `wanted` holds.
    pub fn until(&self, what: &str, wanted: impl Fn(&InstanceFacts) -> bool) -> InstanceFacts {
        let until = Instant::now() + PATIENCE;
        loop {
            let instances = self.instances();
            if let Some(found) = instances.iter().find(|facts| wanted(facts)) {
                return found.clone();
            }
            assert!(Instant::now() < until, "not in time: {what}: {instances:?}");
            sleep(Duration::from_millis(50));
        }
    }

    pub fn keeper_pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.state().join("keeper.json")).expect("a keeper");
        let badge: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        badge["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.state().exists() {
            return;
        }
        for facts in self.instances() {
            self.ask(Request::Stop {
                generation: u64::MAX,
                instance: facts.instance,
                grace_ms: 0,
                before_start: false,
            });
        }
        self.ask(Request::Forget { generation: u64::MAX });
    }
}

impl Link {
    pub fn ask(&mut self, request: &Request) -> Response {
        let input = self.input.as_mut().expect("open");
        write_message(input, request).expect("sent");
        read_message(&mut self.output).expect("a message").expect("an answer")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.input.take());
        let status = self.child.wait().expect("ended");
        if !std::thread::panicking() {
            assert!(status.success() || status.code() == Some(1), "{status}");
        }
    }
}

/// An instance that runs a shell script.
pub fn script(instance: &str, text: &str) -> InstanceSpec {
    InstanceSpec {
        instance: instance.into(),
        specification: "sha256:1".into(),
        model: "coder".into(),
        replica: 0,
        engine: EngineKind::LlamaCpp,
        variant: "gguf:Q4_K_M".into(),
        accelerators: Vec::new(),
        argv: vec!["/bin/sh".into(), "-c".into(), text.into()],
        env: BTreeMap::new(),
        key_env: Some("ENGINE_KEY".into()),
        port: 0,
        port_alternates: Vec::new(),
        internal_ports: Vec::new(),
        served_name: "coder".into(),
        weights: Vec::new(),
        planned_bytes: Vec::new(),
        planned_host_bytes: 0,
        ready_timeout_ms: 60_000,
        unresponsive_after_ms: 0,
        container: None,
        sized_for: None,
        part: None,
    }
}

pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub fn kill(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs");
    assert!(status.success());
    let until = Instant::now() + PATIENCE;
    while is_alive(pid) && Instant::now() < until {
        sleep(Duration::from_millis(10));
    }
}

pub fn pid_in(file: &Path) -> u32 {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(pid) = text.strip_suffix('\n').and_then(|pid| pid.parse().ok()) {
            return pid;
        }
        assert!(Instant::now() < until, "no pid in {}", file.display());
        sleep(Duration::from_millis(20));
    }
}
