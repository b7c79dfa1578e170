//! What the end-to-end and command-line tests share: a config repository of their own, the `flock` binary
//! run on it with a deadline, and polling. `lab` adds real SSH hosts, `hub` a stand-in hub.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod hub;
#[cfg(feature = "agent")]
pub mod lab;
pub mod weights;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one `flock` command may take before the test gives up.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A config repository in a folder of its own, with git in it, and an empty home beside it.
pub struct Repository {
    folder: tempfile::TempDir,
    agents: Option<PathBuf>,
}

impl Repository {
    /// An empty repository without a commit.
    pub fn empty() -> Self {
        let folder = tempfile::Builder::new().prefix("flock-test-").tempdir().expect("a temporary folder");
        let repository = Self { folder, agents: None };
        std::fs::create_dir(repository.path("")).expect("a fresh folder");
        std::fs::create_dir(repository.folder.path().join("home")).expect("a fresh folder");
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository
    }

    /// One with files, committed.
    pub fn with(files: &[(&str, &str)]) -> Self {
        let repository = Self::empty();
        for (name, text) in files {
            repository.write(name, text);
        }
        repository.commit("the first state");
        repository
    }

    /// Where node agents lie.
    pub fn set_agents(&mut self, folder: &Path) {
        self.agents = Some(folder.to_owned());
    }

    /// A path inside the repository.
    pub fn path(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join("config");
        if name.is_empty() { folder } else { folder.join(name) }
    }

    /// A path beside the repository, for what must not be in it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, making its folders.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("inside the repository")).expect("a folder");
        std::fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Commits everything.
    pub fn commit(&self, message: &str) {
        self.git(&["add", "--all"]);
        let who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.edu", "-c", "commit.gpgsign=false"];
        self.git(&[&who[..], &["commit", "--quiet", "--allow-empty", "--message", message]].concat());
    }

    /// Runs git here and returns what it printed.
    pub fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.path("")).args(arguments);
        self.surroundings(&mut command);
        let outcome = Running::start(command).finish(DEADLINE);
        outcome.expect(0).stdout.clone()
    }

    /// Runs `flock` here to its end.
    pub fn flock(&self, arguments: &[&str]) -> Outcome {
        self.start(arguments).finish(DEADLINE)
    }

    /// Runs `flock` here and reads its JSON, whatever the exit code.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        self.flock(&[arguments, &["--format", "json"]].concat()).json()
    }

    /// Starts `flock` here.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command();
        command.args(arguments);
        Running::start(command)
    }

    /// `flock -C FOLDER`, with nothing of the caller's environment but `PATH`.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flock"));
        self.surroundings(&mut command);
        command.arg("-C").arg(self.path(""));
        if let Some(agents) = &self.agents {
            command.arg("--agent-dir").arg(agents);
        }
        command
    }

    fn surroundings(&self, command: &mut Command) {
        command.env_clear().env("HOME", self.folder.path().join("home")).env("LANG", "C.UTF-8").env("USER", "ada");
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("GIT_CONFIG_NOSYSTEM", "1").current_dir(self.folder.path());
        if let Some(backtrace) = std::env::var_os("RUST_BACKTRACE") {
            command.env("RUST_BACKTRACE", backtrace);
        }
    }
}

/// A command that runs, its output being collected.
pub struct Running {
    what: String,
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Running {
    /// Starts a command with no standard input.
    pub fn start(mut command: Command) -> Self {
        let what = describe(&command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Self { what, child, stdout, stderr }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard error so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stderr.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_none()
    }

    /// What it has written to standard output so far.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.stdout.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Sends it a signal by name.
    pub fn signal(&self, name: &str) {
        signal(name, &[self.pid()]);
    }

    /// Waits for its end; a command that passes the deadline is ended and fails the test.
    pub fn finish(mut self, deadline: Duration) -> Outcome {
        let end = Instant::now() + deadline;
        let status = loop {
            match self.child.try_wait().expect("it can be waited for") {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let outcome = Outcome {
            what: self.what,
            code: status.and_then(|status| status.code()),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        };
        assert!(status.is_some(), "it did not end within {deadline:?}\n{outcome}");
        // What it leaves running must not hold on to its streams: a caller with a pipe would wait for ever.
        let closed = self.stdout.closed() && self.stderr.closed();
        assert!(closed, "it ended and something it started keeps its output open\n{outcome}");
        outcome
    }
}

/// A stream that is being read.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn text(&self) -> String {
        self.closed();
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Whether the stream's end was read, now or within ten seconds.
    fn closed(&self) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.reader.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.reader.is_finished()
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> Collected {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let read = Arc::clone(&bytes);
    let reader = std::thread::spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut part = [0; 8192];
        while let Ok(length @ 1..) = stream.read(&mut part) {
            read.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&part[..length]);
        }
    });
    Collected { bytes, reader }
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// How a command ended and what it wrote.
#[derive(Debug)]
pub struct Outcome {
    /// The command as typed.
    pub what: String,
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code.map_or("a signal".to_owned(), |code| code.to_string());
        write!(f, "$ {}\n{}\n--- stderr\n{}\n--- exit {code}", self.what, self.stdout, self.stderr)
    }
}

impl Outcome {
    /// Fails the test, with everything it wrote, unless it ended with this code.
    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        assert!(self.code == Some(code), "expected exit {code}\n{self}");
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON: {error}\n{self}"))
    }

    /// Whether a text is in either stream.
    pub fn says(&self, text: &str) -> bool {
        self.stdout.contains(text) || self.stderr.contains(text)
    }

    /// Fails the test unless a text is in either stream.
    #[track_caller]
    pub fn expect_says(&self, text: &str) -> &Self {
        assert!(self.says(text), "expected to read {text:?}\n{self}");
        self
    }
}

/// Sends processes a signal by name.
pub fn signal(name: &str, pids: &[u32]) {
    let mut command = Command::new("kill");
    command.arg(format!("-{name}")).args(pids.iter().map(u32::to_string));
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Asks until there is an answer, or fails the test after the deadline.
#[track_caller]
pub fn wait_for<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {deadline:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The array at a JSON pointer.
#[track_caller]
pub fn list<'a>(value: &'a serde_json::Value, pointer: &str) -> &'a [serde_json::Value] {
    let found = value.pointer(pointer).and_then(serde_json::Value::as_array);
    found.unwrap_or_else(|| panic!("no list at {pointer} in {value:#}"))
}

/// The text at a JSON pointer.
#[track_caller]
pub fn text<'a>(value: &'a serde_json::Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(serde_json::Value::as_str);
    found.unwrap_or_else(|| panic!("no text at {pointer} in {value:#}"))
}

/// The number at a JSON pointer.
#[track_caller]
pub fn number(value: &serde_json::Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(serde_json::Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {pointer} in {value:#}"))
}

/// A KDL string.
pub fn kdl(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
