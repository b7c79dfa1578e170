//! A stand-in hub that behaves like the real one: `hub.py` beside this file, on free ports, ended when the value is
//! dropped. Its head says what repositories and faults can be.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// How a stand-in listens.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Address of this machine: that of a bridge, for hosts in network namespaces.
    pub bind: String,
    /// Certificate chain and key, PEM; without them it speaks plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Entries on a page of a list.
    pub page: usize,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self { bind: "127.0.0.1".to_owned(), tls: None, page: 1000 }
    }
}

/// A stand-in hub that runs.
pub struct StandInHub {
    folder: tempfile::TempDir,
    child: Child,
    endpoint: String,
    cdn: String,
    control: String,
}

/// A request that it got.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct HubRequest {
    /// When it came, Unix seconds in whole milliseconds.
    pub time: f64,
    /// `hub` or `cdn`.
    pub server: String,
    /// GET, HEAD, POST.
    pub method: String,
    /// Decoded.
    pub path: String,
    /// As sent.
    pub query: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The header `User-Agent`.
    pub user_agent: Option<String>,
    /// Whether it had the header `Authorization`.
    pub authorization: bool,
    /// None where the connection was ended first.
    pub status: Option<u16>,
    /// Of the body, as far as they were sent.
    pub bytes: u64,
    /// Requests that were being answered when it came, itself among them.
    pub at_once: usize,
}

impl StandInHub {
    /// On loopback.
    pub fn start() -> Self {
        Self::start_with(&HubOptions::default())
    }

    /// As the options say.
    pub fn start_with(options: &HubOptions) -> Self {
        let folder = tempfile::Builder::new().prefix("flock-hub-").tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("root")).expect("a fresh folder");
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/hub.py"));
        command.arg("--root").arg(folder.path().join("root")).args(["--bind", &options.bind]);
        command.args(["--page", &options.page.to_string()]);
        if let Some((certificate, key)) = &options.tls {
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("python3 is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says where it listens");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [listening, endpoint, cdn, control] = words.try_into().unwrap_or_else(|_| panic!("it says {line:?}"));
        assert_eq!(listening, "listening");
        Self { folder, child, endpoint, cdn, control }
    }

    /// Its address, as HF_ENDPOINT.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The address of its content network.
    pub fn cdn(&self) -> &str {
        &self.cdn
    }

    /// Folder of a repository.
    pub fn path(&self, repository: &str) -> PathBuf {
        self.folder.path().join("root").join(repository)
    }

    /// Adds a repository, or replaces what is known about one; `card` is its `.repo.json`. Paths below `.flock/` are
    /// headers of files that are made up, and files of other commits.
    pub fn repository(&self, repository: &str, card: &Value, files: &[(&str, &[u8])]) {
        let folder = self.path(repository);
        for (name, content) in files {
            write(&folder.join(name), content);
        }
        write(&folder.join(".repo.json"), card.to_string().as_bytes());
    }

    /// The commit that `main` is at where the card names none.
    pub fn commit(&self, repository: &str) -> String {
        let url = format!("/api/models/{repository}");
        let answer = self.ask(&self.endpoint, "GET", &url, "").1;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        answer["sha"].as_str().expect("a commit").to_owned()
    }

    /// From now on, requests have this fault.
    pub fn fault(&self, fault: Value) {
        let (status, answer) = self.ask(&self.control, "POST", "/faults", &Value::from(vec![fault]).to_string());
        assert_eq!(status, 200, "{answer}");
    }

    /// Ends all faults.
    pub fn heal(&self) {
        assert_eq!(self.ask(&self.control, "DELETE", "/faults", "").0, 200);
    }

    /// The requests that have ended so far.
    pub fn requests(&self) -> Vec<HubRequest> {
        let log = self.ask(&self.control, "GET", "/log", "").1;
        log.lines().map(|line| serde_json::from_str(line).expect("a request")).collect()
    }

    /// The requests since there were so many.
    pub fn requests_since(&self, before: usize) -> Vec<HubRequest> {
        self.requests().split_off(before)
    }

    /// The same, once there are so many of them: the last may still be at its end when its answer has come. If they
    /// stay fewer, those that there are.
    pub fn requests_settled(&self, before: usize, count: usize) -> Vec<HubRequest> {
        for _ in 0..60 {
            let requests = self.requests_since(before);
            if requests.len() >= count {
                return requests;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.requests_since(before)
    }

    /// One plain HTTP request: its status and body.
    fn ask(&self, base: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let host = base.strip_prefix("http://").expect("plain HTTP");
        let mut stream = TcpStream::connect(host).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {answer}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }
}

impl Drop for StandInHub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority of the day, and a certificate of it for this machine's loopback and one more address.
pub struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    /// Makes both.
    pub fn new(address: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("flock-tls-").tempdir().expect("a temporary folder");
        let run = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            let done =
                Command::new("openssl").args(&words).current_dir(folder.path()).output().expect("openssl is there");
            assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
        run(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=flock-test-authority"));
        run(&format!("req {key} -keyout key.pem -out csr.pem -subj /CN=hub").replace(" -days 2", ""));
        let names = format!("subjectAltName=DNS:localhost,IP:127.0.0.1,IP:{address}\n");
        std::fs::write(folder.path().join("names"), names).expect("written");
        run("x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem");
        Self { folder }
    }

    /// The authority's own certificate, PEM.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Certificate and key, PEM, as [`HubOptions::tls`] wants them.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("cert.pem"), self.folder.path().join("key.pem"))
    }
}

/// A forward proxy, ended when the value is dropped: `proxy.py` beside this file.
pub struct Proxy {
    folder: tempfile::TempDir,
    child: Child,
    address: String,
}

impl Proxy {
    /// On loopback, for whoever knows the credentials `USER:PASSWORD`, where there are any.
    pub fn start(credentials: Option<&str>) -> Self {
        let folder = tempfile::Builder::new().prefix("flock-proxy-").tempdir().expect("a temporary folder");
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/proxy.py"));
        command.arg("--log").arg(folder.path().join("log"));
        if let Some(credentials) = credentials {
            command.args(["--credentials", credentials]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("python3 is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says where it listens");
        let address = line.trim().strip_prefix("listening ").unwrap_or_else(|| panic!("it says {line:?}")).to_owned();
        Self { folder, child, address }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it was asked for, a line each: `CONNECT HOST:PORT` or `GET URL`, and `denied` after those without the
    /// right credentials.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("inside the root")).expect("a folder");
    std::fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
