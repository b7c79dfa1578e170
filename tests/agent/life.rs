//! The agent's life on machines as they are: upgrades, restarts, full disks, shared homes, other users, engines that
//! fall silent, containers that outlive their client, modules, systemd.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use flock::inventory::{Check, ContainerRef, Health};

use super::ports::free_port;
use super::*;

const SLEEP: &str = "sleep 1000; sleep 1";

fn serve(program: &Path, node: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["serve", "--cluster", "lab", "--node", node]);
    command
}

fn badge(home: &Home) -> serde_json::Value {
    let text = std::fs::read_to_string(home.state().join("keeper.json")).expect("a keeper");
    serde_json::from_str(&text).expect("JSON")
}

/// A program of its own with another version in it: the very agent, its version's text exchanged.
fn agent_of_version(home: &Home, version: &str) -> PathBuf {
    let mut bytes = std::fs::read(AGENT).expect("the agent");
    let mark = concat!("flock-agent version ", env!("CARGO_PKG_VERSION")).as_bytes();
    let at: Vec<usize> = (0..bytes.len() - mark.len()).filter(|at| bytes[*at..].starts_with(mark)).collect();
    assert_eq!((at.len(), version.len()), (1, env!("CARGO_PKG_VERSION").len()));
    let end = at[0] + mark.len();
    bytes[end - version.len()..end].copy_from_slice(version.as_bytes());
    let path = home.path().join(format!("flock-agent-{version}"));
    std::fs::write(&path, bytes).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let printed = Command::new(&path).arg("--version").output().expect("it runs").stdout;
    assert_eq!(String::from_utf8_lossy(&printed).trim(), format!("flock-agent {version}"));
    path
}

#[test]
fn a_newer_agent_takes_over_without_a_restart_and_an_older_one_never_takes_back() {
    let home = Home::new();
    let newer = agent_of_version(&home, "0.2.0");
    let ask = |program: &Path, request: Request| home.connect_by(serve(program, "ada-1")).ask(&request);
    home.start(&script("aaaa", SLEEP));
    let before = home.until("running", |facts| facts.running);
    assert_eq!(badge(&home)["version"], env!("CARGO_PKG_VERSION"));
    let old_keeper = home.keeper_pid();
    ask(&newer, Request::Supervise { generation: 1 });
    let after = home.until("running", |facts| facts.running);
    assert_eq!((after.pid, after.starts), (before.pid, 1), "taken over without a restart");
    assert_eq!(badge(&home)["version"], "0.2.0");
    assert!(!is_alive(old_keeper));
    // The older one works with it, and leaves it where it is.
    let keeper = home.keeper_pid();
    let answer = ask(Path::new(AGENT), Request::Supervise { generation: 2 });
    assert!(matches!(answer, Response::Instances { .. }), "{answer:?}");
    assert_eq!((home.keeper_pid(), badge(&home)["version"].as_str()), (keeper, Some("0.2.0")));
    // Nor does it when the newer one has died: it starts that one again.
    kill(keeper);
    ask(Path::new(AGENT), Request::Supervise { generation: 2 });
    assert_eq!(badge(&home)["version"], "0.2.0");
    assert_eq!(home.until("running", |facts| facts.running).pid, before.pid);
    // What a newer one has written in a form of its own is neither read nor touched.
    kill(home.keeper_pid());
    std::fs::remove_file(&newer).expect("removed");
    let path = home.state().join("desired.json");
    let text = std::fs::read_to_string(&path).expect("there");
    let changed = text.replacen("\"format\": 1", "\"format\": 99, \"shards\": [1]", 1);
    assert_ne!(text, changed);
    std::fs::write(&path, &changed).expect("written");
    for request in [Request::Supervise { generation: 3 }, Request::Instances] {
        let refused = ask(Path::new(AGENT), request);
        let Response::Refused { refusal: Refusal::Failed { text } } = &refused else { panic!("{refused:?}") };
        assert!(text.contains("newer than this one") && text.contains("0.2.0"), "{text}");
    }
    assert_eq!(std::fs::read_to_string(&path).expect("there"), changed);
    assert!(before.pid.is_some_and(is_alive));
    std::fs::write(&path, text).expect("written");
    ask(Path::new(AGENT), Request::Supervise { generation: 3 });
    assert_eq!(home.until("running", |facts| facts.running).pid, before.pid);
    assert_eq!(badge(&home)["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn another_protocol_is_refused_by_name() {
    let home = Home::new();
    let mut command = serve(Path::new(AGENT), "ada-1");
    command.env("HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the agent starts");
    writeln!(child.stdin.as_mut().expect("piped"), "banner\nflock-agent protocol 9").expect("written");
    let output = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("protocol 9") && said.contains("older"), "{said}");
}

/// What a server in the place of an engine answers.
#[derive(Clone)]
struct Answers(Arc<AtomicU8>);

impl Answers {
    const GARBAGE: u8 = 0;
    const COMPLETION: u8 = 1;
    const NOTHING: u8 = 2;

    /// Listens where the engine should.
    fn serve(port: u16) -> Self {
        let until = Instant::now() + PATIENCE;
        let listener = loop {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        let what = Arc::new(AtomicU8::new(Self::GARBAGE));
        let answers = Self(Arc::clone(&what));
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let body = match what.load(Ordering::Relaxed) {
                    Self::GARBAGE => "<html>{\"choices\": no</html>",
                    Self::COMPLETION => "{\"choices\":[{\"text\":\" 4\",\"finish_reason\":\"length\"}]}",
                    _ => {
                        silent.push(stream);
                        continue;
                    }
                };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let length = body.len();
                let _ =
                    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            }
        });
        answers
    }

    fn now(&self, what: u8) {
        self.0.store(what, Ordering::Relaxed);
    }
}

#[test]
fn garbage_makes_nobody_ready_and_silence_ends_who_was() {
    let home = Home::new();
    let port = free_port();
    let spec = InstanceSpec { port, unresponsive_after_ms: 2000, ..script("aaaa", SLEEP) };
    home.start(&spec);
    let first = home.until("running", |facts| facts.running);
    let answers = Answers::serve(port);
    sleep(Duration::from_secs(2));
    assert_eq!(home.instances()[0].state, InstanceState::Starting, "garbage is no answer");
    answers.now(Answers::COMPLETION);
    home.until("ready", |facts| facts.state == InstanceState::Ready);
    sleep(Duration::from_secs(3));
    assert_eq!(home.instances()[0].state, InstanceState::Ready, "who answers stays");
    answers.now(Answers::NOTHING);
    let failed = home.until("ended", |facts| facts.last_failure.is_some());
    let failure = failed.last_failure.expect("recorded");
    assert_eq!((failure.cause.as_str(), failure.gave_up), ("not_responding", false));
    let again = home.until("started again", |facts| facts.starts == 2 || facts.pid != first.pid);
    assert!(!first.pid.is_some_and(is_alive) && again.last_failure.is_some());
}

#[test]
fn a_stopped_real_engine_is_noticed_and_started_again() {
    let named = |variable: &str| std::env::var(variable).unwrap_or_else(|_| panic!("{variable}: run scripts/test"));
    let (server, model) = (named("FLOCK_TEST_LLAMA_SERVER"), named("FLOCK_TEST_MODEL"));
    let home = Home::new();
    let arguments = ["--model", &model, "--host", "127.0.0.1", "--port", "{port}", "--ctx-size", "512"];
    home.start(&InstanceSpec {
        argv: std::iter::once(server.as_str()).chain(arguments).map(str::to_owned).collect(),
        key_env: Some("LLAMA_API_KEY".into()),
        port: free_port(),
        unresponsive_after_ms: 4000,
        ..script("aaaa", "")
    });
    let ready = home.until("ready", |facts| facts.state == InstanceState::Ready);
    let pid = ready.pid.expect("a pid");
    assert!(Command::new("kill").args(["-STOP", &pid.to_string()]).status().expect("kill runs").success());
    let failed = home.until("noticed", |facts| facts.last_failure.is_some());
    assert_eq!(failed.last_failure.as_ref().map(|failure| failure.cause.as_str()), Some("not_responding"));
    // Since when it fails is when it failed, not when its cleaning up began or ended.
    if failed.state == InstanceState::Failed {
        assert_eq!(failed.since, failed.last_failure.map(|failure| failure.at));
    }
    // Grace, the end of what is left, and another load: each with its own patience.
    home.until("ended", |_| !is_alive(pid));
    home.until("started again", |facts| facts.starts == 2 && facts.running);
    let again = home.until("ready again", |facts| facts.state == InstanceState::Ready);
    assert!(again.pid != ready.pid && again.starts == 2, "{again:?}");
}

#[test]
fn after_a_restart_of_the_node_the_next_apply_resumes() {
    let home = Home::new();
    home.start(&script("aaaa", SLEEP));
    let before = home.until("running", |facts| facts.running);
    kill(home.keeper_pid());
    kill(before.pid.expect("a pid"));
    let path = home.state().join("instances/aaaa/state.json");
    let text = std::fs::read_to_string(&path).expect("a record");
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    record["process"]["boot_id"] = "another boot".into();
    std::fs::write(&path, record.to_string()).expect("written");
    let facts = home.instances().remove(0);
    let failure = facts.last_failure.expect("told");
    assert_eq!((facts.state, failure.cause.as_str()), (InstanceState::Failed, "reboot"));
    assert!(failure.text.contains("flock apply") && facts.since == Some(failure.at), "{}", failure.text);
    home.ask(Request::Supervise { generation: 1 });
    let after = home.until("running", |facts| facts.running);
    assert!(
        after.last_failure.is_none() && after.pid != before.pid,
        "a restart is no failure of the engine: {after:?}"
    );
}

/// This user's id.
fn own_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("there"))
}

/// A command as root, as the test hosts need it too: with sudo where this user is another.
fn as_root(program: &str) -> Command {
    if own_uid() == 0 {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

fn done_as_root(program: &str, arguments: &[&str]) {
    let done = as_root(program).args(arguments).stdin(Stdio::null()).status();
    assert!(
        done.is_ok_and(|done| done.success()),
        "{program} {arguments:?}: run as root, or allow sudo without a password"
    );
}

/// A file system of its own size; unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(path: &Path, options: &str) -> Self {
        std::fs::create_dir_all(path).expect("a folder");
        let options = format!("{options},mode=700,uid={}", own_uid());
        done_as_root("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", path.to_str().expect("UTF-8")]);
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = as_root("umount").arg("-l").arg(&self.0).status();
    }
}

fn fill(folder: &Path) {
    let mut file = std::fs::File::create(folder.join("filler")).expect("made");
    while file.write_all(&[1; 4096]).is_ok() {}
    while file.write_all(&[1; 64]).is_ok() {}
}

#[test]
fn on_a_full_disk_engines_can_still_be_stopped_and_nothing_is_half_written() {
    let home = Home::new();
    let _disk = Mounted::tmpfs(&home.state(), "size=8m");
    home.start(&script("aaaa", SLEEP));
    home.start(&script("bbbb", SLEEP));
    let engine = home.until("running", |facts| facts.instance == "aaaa" && facts.running).pid.expect("a pid");
    let other = home.until("running", |facts| facts.instance == "bbbb" && facts.running).pid.expect("a pid");
    let until = Instant::now() + PATIENCE;
    while !home.state().join(".flock-agent-ballast").exists() && Instant::now() < until {
        sleep(Duration::from_millis(50));
    }
    fill(&home.state());
    let lease = Lease { id: "one".into(), holder: "me@here".into(), generation: 2, ..Lease::default() };
    let taken = home.ask(Request::Lease { lease, ttl_ms: 60_000, expected_generation: None });
    assert_eq!(taken, Response::Done, "the ballast went for it");
    assert_eq!(home.stop("aaaa", 200), Response::Done);
    assert!(!is_alive(engine) && is_alive(other));
    // Now there is really nothing left: what cannot be written down is refused, and not done either.
    fill(&home.state());
    let before = std::fs::read_to_string(home.state().join("desired.json")).expect("there");
    let _ = std::fs::remove_file(home.state().join(".flock-agent-ballast"));
    fill(&home.state());
    let spec = InstanceSpec { env: BTreeMap::from([("X".into(), "x".repeat(200_000))]), ..script("cccc", SLEEP) };
    let refused = home.ask(Request::Start { generation: 1, spec: Box::new(spec) });
    let Response::Refused { refusal: Refusal::Failed { text } } = &refused else { panic!("{refused:?}") };
    assert!(text.contains("desired.json") && text.to_lowercase().contains("no space"), "{text}");
    assert_eq!(std::fs::read_to_string(home.state().join("desired.json")).expect("there"), before);
    assert!(home.instances().iter().all(|facts| facts.instance == "bbbb" && facts.running));
    let half = std::fs::read_dir(home.state()).expect("listed").flatten();
    assert_eq!(half.filter(|entry| entry.file_name().to_string_lossy().ends_with(".new")).count(), 0);
    std::fs::remove_file(home.state().join("filler")).expect("removed");
    assert_eq!(home.stop("bbbb", 200), Response::Done);
}

#[test]
fn two_nodes_with_one_home_keep_apart_and_share_what_they_receive() {
    let home = Home::new();
    let second = |request: Request| home.connect_by(serve(Path::new(AGENT), "ada-2")).ask(&request);
    let (port, spare) = (free_port(), free_port());
    let spec = |name: &str| InstanceSpec { port, port_alternates: vec![spare], ..script(name, SLEEP) };
    home.start(&spec("aaaa"));
    home.until("running", |facts| facts.running);
    let answer = second(Request::Start { generation: 9, spec: Box::new(spec("aaaa")) });
    let Response::Instances { instances, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(instances.len(), 1);
    // The other node's instance of the same name, its generation and its keeper are none of this one's.
    assert_eq!(home.instances().len(), 1);
    assert_eq!(
        home.ask(Request::Start { generation: 1, spec: Box::new(spec("aaaa")) }),
        Response::Instances { instances: home.instances(), supervised: true }
    );
    // One transfer at a time into the shared folder; the other node is told to wait for it.
    let content = vec![7u8; 100_000];
    let file = FetchFile {
        name: "m.gguf".into(),
        size_bytes: content.len() as u64,
        sha256: Some(Digest::of(&content).to_string()),
    };
    let fetch = FetchSpec {
        source: "path:m.gguf".into(),
        revision: "sha256:0123".into(),
        folder: home.path().join("weights/0123").display().to_string(),
        files: vec![file],
    };
    let put = Request::Put { fetch: fetch.clone(), name: "m.gguf".into(), offset: 0 };
    let mut first = home.connect();
    let input = first.input.as_mut().expect("open");
    write_message(input, &put).expect("sent");
    input.write_all(&raw_frame(&content[..50_000])).expect("sent");
    let part = home.path().join("weights/0123/m.gguf.part");
    let until = Instant::now() + PATIENCE;
    while std::fs::metadata(&part).map_or(0, |meta| meta.len()) < 50_000 && Instant::now() < until {
        sleep(Duration::from_millis(10));
    }
    let mut other = home.connect_by(serve(Path::new(AGENT), "ada-2"));
    let input = other.input.as_mut().expect("open");
    write_message(input, &put).expect("sent");
    input.write_all(&raw_frame(&content)).and_then(|()| input.write_all(&raw_frame(&[]))).expect("sent");
    let answer: Response = read_message(&mut other.output).expect("a message").expect("an answer");
    assert!(matches!(answer, Response::Refused { refusal: Refusal::Busy { .. } }), "{answer:?}");
    let input = first.input.as_mut().expect("open");
    input.write_all(&raw_frame(&content[50_000..])).and_then(|()| input.write_all(&raw_frame(&[]))).expect("sent");
    let answer: Response = read_message(&mut first.output).expect("a message").expect("an answer");
    assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![100_000] });
    assert_eq!(other.ask(&Request::FetchState { fetch }), answer, "there for both");
    drop((first, other));
    second(Request::Stop { generation: 9, instance: "aaaa".into(), grace_ms: 0, before_start: false });
    assert_eq!(home.instances().len(), 1);
    assert_eq!(second(Request::Forget { generation: 9 }), Response::Done);
}

#[test]
fn another_user_can_neither_take_the_sockets_place_nor_the_port() {
    const UID: u32 = 54_321;
    let squatted = PathBuf::from(format!("/tmp/flock-{UID}"));
    let _ = std::fs::remove_dir_all(&squatted);
    std::fs::create_dir(&squatted).expect("as another user would");
    std::fs::set_permissions(&squatted, std::fs::Permissions::from_mode(0o777)).expect("set");
    let mine = Home::new();
    let (port, spare) = (free_port(), free_port());
    let theirs = Home::new();
    let agent = theirs.path().join("flock-agent");
    std::fs::copy(AGENT, &agent).expect("copied");
    let give = |uid: u32| done_as_root("chown", &["-R", &uid.to_string(), theirs.path().to_str().expect("UTF-8")]);
    give(UID);
    let ask = |request: Request| {
        let mut command = as_root("env");
        command.args(["-u", "XDG_RUNTIME_DIR", &format!("HOME={}", theirs.path().display()), "setpriv"]);
        command.args(["--reuid", &UID.to_string(), "--regid", &UID.to_string(), "--clear-groups"]).arg(&agent);
        command.args(["serve", "--cluster", "lab", "--node", "ada-1"]);
        theirs.connect_by(command).ask(&request)
    };
    // The engine of the first user really listens.
    let listening = "exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => \"127.0.0.1\", LocalPort => \
                     {port}, Listen => 5) or die; sleep 1000'";
    let spec = InstanceSpec { port, port_alternates: vec![spare], ..script("aaaa", listening) };
    mine.start(&spec);
    mine.until("running", |facts| facts.running && facts.port == port);
    let until = Instant::now() + PATIENCE;
    while TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    let answer = ask(Request::Start { generation: 1, spec: Box::new(spec) });
    let Response::Instances { instances, .. } = &answer else { panic!("{answer:?}") };
    assert_eq!(instances[0].port, spare, "{instances:?}");
    assert_eq!(
        std::fs::read_dir(&squatted).expect("listed").count(),
        0,
        "nothing of theirs lies where others can reach"
    );
    let sockets = theirs.path().join(".local/share/flock/sockets");
    let listed = as_root("ls").arg(&sockets).output().expect("ls runs").stdout;
    assert!(String::from_utf8_lossy(&listed).contains(".sock"), "{listed:?}");
    let checks = ask(Request::Doctor { engines: Vec::new(), weights_path: None, ports: (20_000, 20_999) });
    let Response::Checks { checks, .. } = checks else { panic!("{checks:?}") };
    assert_eq!(check(&checks, "sockets").health, Health::Warn);
    ask(Request::Stop { generation: 1, instance: "aaaa".into(), grace_ms: 0, before_start: false });
    assert_eq!(ask(Request::Forget { generation: 1 }), Response::Done);
    give(own_uid());
    let _ = std::fs::remove_dir_all(&squatted);
}

fn check<'a>(checks: &'a [Check], id: &str) -> &'a Check {
    checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no {id} in {checks:?}"))
}

#[test]
fn a_doctor_looks_and_changes_nothing() {
    let home = Home::new();
    let query = |paths: Vec<String>| flock::inventory::EngineQuery {
        kind: EngineKind::LlamaCpp,
        paths,
        modules: Vec::new(),
        image: None,
    };
    let ask = |paths: Vec<String>| {
        let request = Request::Doctor { engines: vec![query(paths)], weights_path: None, ports: (40_000, 40_100) };
        let Response::Checks { checks, now_unix_ms } = home.ask(request) else { panic!("no checks") };
        assert!(now_unix_ms > 1_600_000_000_000);
        checks
    };
    let checks = ask(vec!["/does/not/exist".into()]);
    assert_eq!(check(&checks, "engine.llama.cpp").health, Health::Fail);
    assert_eq!(check(&checks, "port_range").health, Health::Warn, "inside the ephemeral ports");
    for id in ["platform", "agent", "lease", "home", "home_kind", "logout", "ports", "driver"] {
        assert_eq!(check(&checks, id).health, Health::Ok, "{checks:?}");
    }
    assert!(checks.iter().all(|check| (check.health == Health::Ok) == check.remedy.is_none()));
    assert_eq!(std::fs::read_dir(home.path()).expect("listed").count(), 0);
    let _disk = Mounted::tmpfs(&home.path().join(".local/share/flock/weights"), "size=1m,nr_inodes=20");
    let checks = ask(Vec::new());
    assert_eq!(check(&checks, "weights_disk").health, Health::Fail);
}

/// A program that behaves like docker's client: what it runs belongs to another process tree, carries nothing of the
/// client's environment but what `--env` names, and outlives it.
fn docker(home: &Home) -> PathBuf {
    let path = home.path().join("docker");
    let text = r#"#!/bin/bash
folder=$(dirname "$0")
case $1 in
version) echo "Client: stand-in"; exit 0 ;;
rm)
    name=$3
    [ -f "$folder/$name.container" ] || { echo "Error response from daemon: No such container: $name" >&2; exit 1; }
    kill -9 -"$(cat "$folder/$name.container")" 2>/dev/null
    rm "$folder/$name.container"; echo "$name" ;;
run)
    shift; environment=()
    while [ $# -gt 0 ]; do
        case $1 in
        --rm) shift ;;
        --name) name=$2; shift 2 ;;
        --env) environment+=("$2=${!2}"); shift 2 ;;
        --entrypoint) program=$2; shift 2 ;;
        --*) shift 2 ;;
        *) shift; break ;;
        esac
    done
    [ ! -f "$folder/$name.container" ] || { echo "docker: Conflict. The container name /$name is already in use"; exit 125; }
    # The daemon's child, not ours.
    setsid --fork env -i "PATH=$PATH" "${environment[@]}" bash -c 'echo $$ > "$0"; exec "$@"' "$folder/$name.container" "$program" "$@" </dev/null
    until [ -s "$folder/$name.container" ]; do sleep 0.02; done
    pid=$(cat "$folder/$name.container")
    trap 'kill -TERM -"$pid"' TERM
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05 & wait $!; done
    rm -f "$folder/$name.container" ;;
esac
"#;
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

#[test]
fn a_container_never_outlives_its_instance() {
    let home = Home::new();
    let program = docker(&home);
    // Its own name on a daemon that serves others too.
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(home.path()).expect("there"));
    let whose = flock::base::Digest::of(format!("{uid} {}", home.state().display()).as_bytes());
    let file = home.path().join(format!("flock-aaaa-{}.container", whose.short(12)));
    let argv = [program.to_str().expect("UTF-8"), "run", "--rm", "--name", "flock-aaaa", "--network", "host"];
    let more =
        ["--env", "ENGINE_KEY", "--entrypoint", "/bin/bash", "image:1", "-c", "trap '' TERM; sleep 1000; sleep 1"];
    let spec = InstanceSpec {
        argv: argv.iter().chain(&more).map(|word| (*word).to_owned()).collect(),
        container: Some(ContainerRef { program: program.display().to_string(), name: "flock-aaaa".into() }),
        ..script("aaaa", "")
    };
    home.start(&spec);
    let client = home.until("running", |facts| facts.running).pid.expect("a pid");
    let inside = pid_in(&file);
    let environment = std::fs::read(format!("/proc/{inside}/environ")).expect("ours");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("ENGINE_KEY=") && !environment.contains("FLOCK_INSTANCE="), "{environment}");
    let arguments = std::fs::read(format!("/proc/{client}/cmdline")).expect("ours");
    let Response::Key { key, .. } = home.ask(Request::Key { instance: "aaaa".into() }) else { panic!("a key") };
    assert!(!String::from_utf8_lossy(&arguments).contains(key.reveal().as_str()), "no key in arguments");
    // The client is killed: what it ran goes before the next start.
    kill(client);
    home.until("started again", |facts| facts.running && facts.pid != Some(client));
    let second = pid_in(&file);
    assert!(second != inside && !is_alive(inside));
    // And while nobody keeps.
    kill(home.keeper_pid());
    kill(home.instances()[0].pid.expect("a pid"));
    assert!(is_alive(second));
    home.ask(Request::Supervise { generation: 1 });
    home.until("started again", |facts| facts.running && facts.starts == 3);
    let third = pid_in(&file);
    assert!(third != second && !is_alive(second));
    assert_eq!(home.stop("aaaa", 300), Response::Done);
    assert!(!is_alive(third) && !file.exists());
}

#[test]
fn modules_are_loaded_by_the_login_shell_before_the_engine() {
    let home = Home::new();
    let modules = |modules: &[&str], text: &str| {
        let modules: Vec<String> = modules.iter().map(|module| (*module).to_owned()).collect();
        let argv = ["/bin/sh", "-c", text, "name", "a b", "$(id)"].map(str::to_owned).to_vec();
        InstanceSpec { argv: flock::engine::with_modules(&modules, argv), ..script("aaaa", "") }
    };
    home.start(&modules(&["cuda/12"], SLEEP));
    let failed = home.until("given up", |facts| facts.last_failure.as_ref().is_some_and(|failure| failure.gave_up));
    let failure = failed.last_failure.expect("recorded");
    assert_eq!(failure.cause, "configuration");
    assert!(failure.text.contains("module cuda/12 cannot be loaded"), "{}", failure.text);
    home.stop("aaaa", 0);
    // As sites define it, in a start file of login shells.
    let function = "module() { [ \"$1\" = load ] && [ \"$2\" != none ] && export LOADED=\"$LOADED $2\"; }\n";
    std::fs::write(home.path().join(".bash_profile"), function).expect("written");
    let said = home.path().join("said");
    let text = format!("echo \"$LOADED|$1|$2\" > {}; exec sleep 1000", said.display());
    home.start(&modules(&["gcc/13", "cuda/12"], &text));
    let running = home.until("running", |facts| facts.running);
    let until = Instant::now() + PATIENCE;
    while std::fs::read_to_string(&said).unwrap_or_default().is_empty() && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(&said).expect("said"), " gcc/13 cuda/12|a b|$(id)\n");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", running.pid.expect("a pid"))).expect("ours");
    assert_eq!(name.trim(), "sleep", "the shells have become the engine");
    home.stop("aaaa", 0);
    home.start(&modules(&["none"], SLEEP));
    home.until("given up", |facts| facts.last_failure.as_ref().is_some_and(|failure| failure.cause == "configuration"));
}

/// A real `systemd --user` in namespaces of its own; what logind would keep (who lingers) is a file, as it is there.
struct UserManager {
    home: Home,
    group: String,
}

impl UserManager {
    fn start(home: Home) -> Self {
        let group = format!("flock-test-{}-{}", std::process::id(), home.path().file_name().expect("a name").display());
        let manager = Self { home, group };
        manager.boot();
        manager
    }

    fn boot(&self) {
        let (ready, pid) = (self.home.path().join("manager-is-up"), self.home.path().join("manager-pid"));
        let _ = std::fs::remove_file(&ready);
        let inside = r#"
            mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/system /run/user/0; chmod 700 /run/user/0
            mkdir -p /var/lib/systemd/linger; mount -t tmpfs tmpfs /var/lib/systemd/linger; touch /var/lib/systemd/linger/root
            umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup
            mkdir -p "/sys/fs/cgroup/$2"; echo $$ > "/sys/fs/cgroup/$2/cgroup.procs"
            export XDG_RUNTIME_DIR=/run/user/0 HOME="$1"
            /usr/lib/systemd/systemd --user --log-target=null &
            until systemctl --user is-system-running >/dev/null 2>&1; do sleep 0.05; done
            touch "$3"; wait
        "#;
        let outside = "setsid unshare --mount --pid --fork --kill-child --mount-proc sh -c \"$1\" sh \"$2\" \"$3\" \"$4\" \
                       </dev/null >/dev/null 2>&1 & echo $! > \"$5\"";
        let mut command = as_root("sh");
        command.args(["-c", outside, "sh", inside]).arg(self.home.path()).arg(&self.group).arg(&ready).arg(&pid);
        assert!(command.status().expect("sh runs").success());
        let until = Instant::now() + PATIENCE;
        while !ready.exists() {
            assert!(
                Instant::now() < until,
                "no user manager: is systemd installed, and may this user make namespaces?"
            );
            sleep(Duration::from_millis(50));
        }
    }

    fn end(&self) {
        let pid = pid_in(&self.home.path().join("manager-pid"));
        let _ = as_root("kill").args(["-9", &pid.to_string()]).status();
        let until = Instant::now() + PATIENCE;
        while is_alive(pid) && Instant::now() < until {
            sleep(Duration::from_millis(20));
        }
    }

    /// A command inside.
    fn inside(&self, program: &str) -> Command {
        let unshare = pid_in(&self.home.path().join("manager-pid"));
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).expect("it lives");
        let mut command = as_root("nsenter");
        command.args(["--target", children.trim(), "--mount", "--pid", "--wd=/", "env", "XDG_RUNTIME_DIR=/run/user/0"]);
        command.arg(format!("HOME={}", self.home.path().display())).arg(program);
        command
    }

    fn ask(&self, request: Request) -> Response {
        let mut command = self.inside(AGENT);
        command.args(["serve", "--cluster", "lab", "--node", "ada-1"]);
        self.home.connect_by(command).ask(&request)
    }

    fn until(&self, what: &str, wanted: impl Fn(&InstanceFacts) -> bool) -> InstanceFacts {
        let until = Instant::now() + PATIENCE;
        loop {
            let Response::Instances { instances, .. } = self.ask(Request::Instances) else { panic!("no instances") };
            if let Some(found) = instances.iter().find(|facts| wanted(facts)) {
                return found.clone();
            }
            assert!(Instant::now() < until, "not in time: {what}: {instances:?}");
            sleep(Duration::from_millis(100));
        }
    }

    fn unit(&self, property: &str) -> String {
        let mut command = self.inside("systemctl");
        command.args(["--user", "show", "--value", "--property", property, "flock-agent-lab-ada\\x2d1.service"]);
        String::from_utf8_lossy(&command.output().expect("systemctl runs").stdout).trim().to_owned()
    }
}

impl Drop for UserManager {
    fn drop(&mut self) {
        self.end();
        let text = "umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; \
                    for i in 1 2 3 4 5 6 7 8 9; do find \"/sys/fs/cgroup/$1\" -depth -type d -exec rmdir {} + 2>/dev/null && break; \
                    sleep 0.1; done";
        let _ = as_root("unshare").args(["--mount", "sh", "-c", text, "sh", &self.group]).status();
        // Everything of it is dead: nothing for the home to end.
        let _ = as_root("rm").arg("-rf").arg(self.home.state()).status();
        let _ = as_root("chown").arg("-R").arg(own_uid().to_string()).arg(self.home.path()).status();
    }
}

#[test]
fn a_user_unit_keeps_the_keeper_and_brings_it_back() {
    let manager = UserManager::start(Home::new());
    let unit = manager.home.path().join(".config/systemd/user/flock-agent-lab-ada\\x2d1.service");
    let wanted = unit.with_file_name("default.target.wants").join(unit.file_name().expect("a name"));
    // Looking writes no unit.
    manager.ask(Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() });
    assert!(!unit.exists());
    let started = manager.ask(Request::Start { generation: 1, spec: Box::new(script("aaaa", SLEEP)) });
    assert!(matches!(started, Response::Instances { .. }), "{started:?}");
    let before = manager.until("running", |facts| facts.running);
    assert!(unit.exists() && std::fs::symlink_metadata(&wanted).is_ok());
    assert_eq!((manager.unit("ActiveState"), manager.unit("UnitFileState")), ("active".into(), "enabled".into()));
    assert_eq!((manager.unit("KillMode"), manager.unit("OOMPolicy")), ("process".into(), "continue".into()));
    let checks = manager.ask(Request::Doctor { engines: Vec::new(), weights_path: None, ports: (20_000, 20_999) });
    let Response::Checks { checks, .. } = checks else { panic!("{checks:?}") };
    assert_eq!((check(&checks, "reboot").health, check(&checks, "logout").health), (Health::Ok, Health::Ok));
    // A keeper that is killed comes back by itself; its engine never notices.
    let keeper = manager.unit("MainPID");
    assert!(manager.inside("kill").args(["-9", &keeper]).status().expect("kill runs").success());
    let until = Instant::now() + PATIENCE;
    while (manager.unit("MainPID") == keeper || manager.unit("MainPID") == "0") && Instant::now() < until {
        sleep(Duration::from_millis(100));
    }
    assert_ne!(manager.unit("MainPID"), "0");
    let after = manager.until("running", |facts| facts.running);
    assert_eq!((after.pid, after.starts), (before.pid, 1));
    // Everything ends, as with the machine, and the manager starts anew.
    manager.end();
    manager.boot();
    let again = manager.until("running without anybody's doing", |facts| facts.running);
    assert_eq!(again.starts, 2, "{again:?}");
    manager.ask(Request::Stop { generation: 1, instance: "aaaa".into(), grace_ms: 0, before_start: false });
    assert_eq!(manager.ask(Request::Forget { generation: 1 }), Response::Done);
    assert!(!unit.exists() && std::fs::symlink_metadata(&wanted).is_err());
    assert_eq!(manager.unit("LoadState"), "not-found");
}
