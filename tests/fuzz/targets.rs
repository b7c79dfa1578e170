//! What is fed with anything: every reader of what comes from outside, and what is done with what it reads. A target
//! fails by panicking. `guided.rs` runs them under a coverage-guided fuzzer, `tests/fuzz_corpus.rs` runs the corpora,
//! all past findings and a bounded number of mutations.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use flock::agent::frames::{Frame, read_frame, read_message, skip_to_hello};
use flock::agent::layout::Layout;
use flock::agent::serve::serve;
use flock::base::{Diagnostic, Digest, EngineKind, Place, Severity, Tree, TreeEntry, is_obeyed};
use flock::config::{self, Unformatted};
use flock::edge::{AgentNode, Hello, SshEnvironment, known_host, ssh_way};
use flock::engine::{DeviceMemory, read_memory};
use flock::inventory::{
    FetchSpec, HELLO, Inventory, NodeFacts, Request, Response, json_frame, parse_inventory, raw_frame,
    refuse_control_characters,
};
use flock::placement::{self, Candidate, Candidates, Options, Origin};
use flock::plan::{self, Limits, ObservedSpecs, Plan, PlanInput};
use flock::ports::{ByteStream, Node as _, NodeError, Transport};
use flock::report::{self, Amount, PlanView, Style};
use flock::weights::{Inspect, Listing, Lock, Ranges, Variant, inspect};

/// What takes any bytes.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("kdl", kdl),
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("agent", agent),
    ("controller", controller),
    ("inventory", inventory),
    ("lock", lock),
    ("plan", plan_file),
    ("known_hosts", known_hosts),
    ("format", format),
    ("ssh_config", ssh_config),
    ("findings", findings),
    ("engine_log", engine_log),
];

/// Parts one input into several files.
pub const NEXT: u8 = 0x1c;

fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|byte| *byte == NEXT)
}

/// Nothing that a terminal would obey may be in what is shown.
fn shown(text: &str) {
    let found = text.chars().find(|c| is_obeyed(*c));
    assert!(found.is_none(), "{found:?} would reach the terminal in {text:?}");
}

/// A config repository: `cluster.kdl`, a workflow and a policy file, parted by [`NEXT`].
fn kdl(data: &[u8]) {
    let mut tree = Tree::from_iter([("workflows/schemas/tasks.json", "{}"), ("workflows/prompts/viewer.md", "see")]);
    let names = ["cluster.kdl", "workflows/w.kdl", "policies/p.kdl"];
    for (name, bytes) in names.into_iter().zip(parts(data)) {
        tree.insert(name, TreeEntry::File(bytes.to_vec()));
    }
    let loaded = config::load(&tree);
    let invalid = loaded.diagnostics.iter().any(|found| found.severity == Severity::Error);
    assert_eq!(loaded.desired.is_none(), invalid, "{:?}", loaded.diagnostics);
    assert_eq!(loaded.config_digest.is_none(), invalid);
    for found in &loaded.diagnostics {
        shown(&found.message);
        shown(found.hint.as_deref().unwrap_or_default());
        found.related.iter().for_each(|related| shown(&related.message));
        let Some(file) = &found.file else {
            assert!(found.line.is_none() && found.column.is_none(), "{found:?}");
            continue;
        };
        let text = match tree.get(file) {
            Some(TreeEntry::File(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let lengths = line_lengths(text.strip_prefix('\u{feff}').unwrap_or(&text));
        let inside = |line: Option<usize>, column: Option<usize>, past: usize| {
            let length = line.and_then(|line| lengths.get(line.checked_sub(1)?));
            length.zip(column).is_some_and(|(length, column)| (1..=length + past).contains(&column))
        };
        // A place may be just behind the last character, and its end one more.
        assert!(inside(found.line, found.column, 1), "{found:?} lies outside {text:?}");
        assert!(inside(found.end_line, found.end_column, 2), "{found:?} ends outside {text:?}");
        assert!((found.line, found.column) <= (found.end_line, found.end_column), "{found:?}");
    }
    shown(&report::diagnostics_text(&loaded.diagnostics, &tree, &Style::PLAIN));
    if let Some(desired) = &loaded.desired {
        let again = config::load(&tree);
        assert_eq!(again.config_digest, loaded.config_digest);
        assert_eq!(Some(Digest::of_json(desired)), loaded.config_digest);
    }
}

/// Characters of each line, as editors count lines.
fn line_lengths(text: &str) -> Vec<usize> {
    let mut lengths = vec![0];
    let mut before = None;
    for c in text.chars() {
        match (before, c) {
            (Some('\r'), '\n') => {}
            (_, '\n' | '\r') => lengths.push(0),
            _ => *lengths.last_mut().expect("never empty") += 1,
        }
        before = Some(c);
    }
    lengths
}

/// One GGUF file, or several shards parted by `FLOCK-SHARD`. A first byte of `+` says that the listing claims a
/// larger file than there is: headers are read long before the tensors.
fn gguf(data: &[u8]) {
    let (claim, data) = claimed(data);
    weights(&[("m.gguf", data)], claim);
}

/// `config.json`, `model.safetensors` and `model.safetensors.index.json`, parted by [`NEXT`].
fn safetensors(data: &[u8]) {
    let (claim, data) = claimed(data);
    let names = ["config.json", "model.safetensors", "model.safetensors.index.json"];
    // The header's length holds any byte: what is left after the first two is the last file.
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(data.splitn(3, |byte| *byte == NEXT)).collect();
    weights(&files, claim);
}

fn claimed(data: &[u8]) -> (u64, &[u8]) {
    data.strip_prefix(b"+").map_or((0, data), |rest| (1 << 34, rest))
}

fn weights(files: &[(&str, &[u8])], claim: u64) -> Vec<Variant> {
    let sizes = files.iter().map(|(name, bytes)| {
        let claim = if name.ends_with(".json") { 0 } else { claim };
        (*name, bytes.len() as u64 + claim)
    });
    let listing = Listing::new(sizes).expect("plain names");
    let mut ranges = Ranges::new();
    for _ in 0..10_000 {
        match inspect(&listing, &ranges) {
            Err(error) => {
                shown(&error.to_string());
                return Vec::new();
            }
            Ok(Inspect::Done(variants)) => {
                for variant in &variants {
                    variant.notes.iter().for_each(|note| shown(note));
                    sized(variant);
                }
                return variants;
            }
            Ok(Inspect::Need { file, offset, length }) => {
                assert!(length > 0);
                let bytes = files.iter().find(|(name, _)| *name == file).expect("a listed file").1;
                let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let end = begin.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)).min(bytes.len());
                ranges.insert(&file, offset, &bytes[begin..end]);
            }
        }
    }
    panic!("it never has enough");
}

/// What a header says is sized: no figure may overflow.
fn sized(variant: &Variant) {
    use flock::base::EngineKind;
    use flock::sizing::{SizeRequest, legal_splits, size_report};
    for engine in EngineKind::ALL.iter().copied() {
        let _ = legal_splits(variant, engine);
        let request = SizeRequest { engine: Some(engine), ..SizeRequest::default() };
        match size_report(std::slice::from_ref(variant), &request) {
            Ok(answer) => shown(&report::size_text(&answer, true, &Style::PLAIN)),
            Err(error) => shown(&error.to_string()),
        }
    }
}

/// Frames: after a first byte `!` the raw stream, else one message a line, which gets its length here; a line that
/// begins with `B` is a piece of a file.
fn frames(data: &[u8]) -> Vec<u8> {
    if let Some(raw) = data.strip_prefix(b"!") {
        return raw.to_vec();
    }
    let mut stream = format!("{HELLO}\n").into_bytes();
    for line in data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match line.strip_prefix(b"B") {
            Some(piece) => stream.extend(raw_frame(piece)),
            None => {
                stream.push(b'J');
                stream.extend(u32::try_from(line.len()).unwrap_or(u32::MAX).to_be_bytes());
                stream.extend_from_slice(line);
            }
        }
    }
    stream
}

/// `flock-agent serve` in a home of its own. Whatever comes, its answers can be read and it writes nowhere else.
fn agent(data: &[u8]) {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let outer = tempfile::Builder::new().prefix("flock-fuzz-").tempdir_in(place).expect("a folder");
    let home = outer.path().join("home");
    std::fs::create_dir(&home).expect("a fresh folder");
    let layout = Layout::new(&home, "lab", "ada-1").expect("plain names");
    let input = contained(&frames(data), &home);
    let mut output = Vec::new();
    if let Err(error) = serve(&layout, &mut input.as_slice(), &mut output) {
        shown(&error.chain());
    }
    let mut answers = output.as_slice();
    assert!(skip_to_hello(&mut answers).expect("memory"));
    while read_message::<Response>(&mut answers).expect("its own answers can be read").is_some() {}
    let beside = std::fs::read_dir(outer.path()).expect("listed").count();
    assert_eq!(beside, 1, "it wrote beside its home");
}

/// The stream with every path of a request below the home, and without what needs the keeper: that is another
/// process, and what it gets has been decoded by then.
fn contained(stream: &[u8], home: &Path) -> Vec<u8> {
    let mut rest = stream;
    // No hello, or that of another version: the agent reads no further.
    if !skip_to_hello(&mut rest).is_ok_and(|found| found) {
        return stream.to_vec();
    }
    let mut safe = stream[..stream.len() - rest.len()].to_vec();
    loop {
        let before = rest;
        let frame = match read_frame(&mut rest) {
            Ok(Some(frame)) => frame,
            // The agent stops here too.
            Ok(None) | Err(_) => {
                safe.extend_from_slice(before);
                return safe;
            }
        };
        match frame {
            Frame::Raw(bytes) => safe.extend(raw_frame(&bytes)),
            Frame::Json(bytes) => match serde_json::from_slice::<Request>(&bytes) {
                Err(_) => {
                    safe.extend_from_slice(before);
                    return safe;
                }
                Ok(request) => {
                    let again = serde_json::to_vec(&request).expect("plain data");
                    assert_eq!(serde_json::from_slice::<Request>(&again).expect("what was written"), request);
                    if let Some(request) = below(request, home) {
                        safe.extend(json_frame(&request).expect("as long as it was"));
                    }
                }
            },
        }
    }
}

fn below(mut request: Request, home: &Path) -> Option<Request> {
    let inside = |path: &mut String| {
        *path = format!("{}/{}", home.display(), path.replace("..", "__").replace('\0', "_"));
    };
    match &mut request {
        Request::Probe { engines, weights_path, on_node } => {
            engines.iter_mut().flat_map(|engine| &mut engine.paths).for_each(inside);
            weights_path.iter_mut().chain(on_node).for_each(inside);
        }
        Request::FetchState { fetch } | Request::FetchDone { fetch } | Request::Put { fetch, .. } => {
            let FetchSpec { folder, .. } = fetch;
            // The store is the folder above.
            *folder = format!("store/{folder}");
            inside(folder);
        }
        Request::Collect { weights_path, .. } => weights_path.iter_mut().for_each(inside),
        // What starts processes, or reaches out of the home.
        Request::Start { .. }
        | Request::Stop { .. }
        | Request::Supervise { .. }
        | Request::Forget { .. }
        | Request::Doctor { .. }
        | Request::Download { .. }
        | Request::Offer { .. }
        | Request::Take { .. }
        | Request::MeasureListen { .. }
        | Request::MeasureConnect { .. }
        | Request::MeasureEndpoints { .. } => return None,
        Request::Instances
        | Request::Lease { .. }
        | Request::Release { .. }
        | Request::BreakLease
        | Request::WriteMember { .. }
        | Request::Ping
        | Request::History
        | Request::Listeners { .. }
        | Request::Key { .. }
        | Request::Log { .. } => {}
    }
    Some(request)
}

/// A node whose agent says anything.
struct Anything(Mutex<Option<Vec<u8>>>);

#[async_trait::async_trait]
impl Transport for Anything {
    fn node(&self) -> &str {
        "ada-1"
    }

    async fn open_agent(&self) -> Result<Box<dyn ByteStream>, NodeError> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let lost = || NodeError::Lost { reason: "nothing more".to_owned() };
        Ok(Box::new(tokio::io::join(Cursor::new(bytes.ok_or_else(lost)?), tokio::io::sink())))
    }

    async fn open_port(&self, _port: u16) -> Result<Box<dyn ByteStream>, NodeError> {
        Err(NodeError::Lost { reason: "no ports".to_owned() })
    }

    async fn host_key(&self) -> Option<String> {
        None
    }

    async fn close(&self) {}
}

/// The controller's side: the hello line in pieces, then answers, and what is made of them.
fn controller(data: &[u8]) {
    let stream = frames(data);
    let mut hello = Hello::default();
    let mut rest = None;
    for piece in stream.chunks(1 + stream.len() / 3) {
        match (&mut rest, hello.push(piece)) {
            (Some(rest), _) => Vec::extend_from_slice(rest, piece),
            (None, Ok(found)) => rest = found,
            (None, Err(error)) => return shown(&error.to_string()),
        }
    }
    let mut whole = Hello::default();
    let at_once = whole.push(&stream);
    assert_eq!(at_once.ok().flatten(), rest, "pieces and the whole");
    let Some(answers) = rest else { return };

    let node = AgentNode::new(Arc::new(Anything(Mutex::new(Some(answers)))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        for _ in 0..8 {
            match node.call(Request::Instances).await {
                Ok(Response::Facts { node, member, desired, .. }) => {
                    let inventory = Inventory { format: 1, nodes: vec![*node], member, ..Inventory::default() };
                    let specs = ObservedSpecs::from([("ada-1".to_owned(), desired)]);
                    seen(&inventory, &specs);
                }
                Ok(Response::Instances { instances, .. }) => {
                    let facts =
                        NodeFacts { name: "ada-1".to_owned(), reachable: true, instances, ..NodeFacts::default() };
                    let inventory = Inventory { format: 1, nodes: vec![facts], ..Inventory::default() };
                    seen(&inventory, &ObservedSpecs::new());
                }
                Ok(response) => drop(format!("{response:?}")),
                Err(error) => {
                    shown(&error.to_string());
                    shown(&error.hint().unwrap_or_default());
                    if !matches!(error, NodeError::Refused(_)) {
                        break;
                    }
                }
            }
        }
    });
}

/// What `discover`, `status`, `plan` and `drift` make of facts.
fn seen(inventory: &Inventory, specs: &ObservedSpecs) {
    let _ = plan::inventory_digest(inventory);
    shown(&report::inventory_text(inventory, &Style::PLAIN));
    let observed = plan::observe(inventory, specs);
    WORLD.with_borrow(|world| {
        let status = report::status(&world.desired, inventory, &observed, None);
        shown(&report::status_text(&status, inventory, &Style::PLAIN));
        let (drift, decay) =
            (plan::drift(inventory, specs, &observed), plan::decay(&world.desired, inventory, &observed));
        shown(&report::drift_text(&report::DriftDocument::of(&drift, &decay), &Style::PLAIN));
        // The solver is bounded by counted work; a few devices keep an execution short.
        if inventory.nodes.len() > 3 || inventory.nodes.iter().any(|node| node.accelerators.len() > 8) {
            return;
        }
        let (placement, problem) = placement::place(&world.desired, inventory, &world.candidates, &Options::default());
        assert_eq!(placement::check(&problem, &placement), Vec::<String>::new());
        let made = plan::plan(&PlanInput {
            hub: "https://hub.example",
            moment: plan::Moment::default(),
            desired: &world.desired,
            config_digest: "d".to_owned(),
            commit: None,
            dirty: false,
            inventory,
            observed: specs,
            candidates: &world.candidates,
            placement: &placement,
            egress: Vec::new(),
            limits: Limits::default(),
            drain: BTreeSet::new(),
            pauses: inventory.member.pauses.clone(),
            warnings: Vec::new(),
        });
        whole_plan(&made, inventory);
    });
}

fn whole_plan(plan: &Plan, inventory: &Inventory) {
    for amount in [Amount::Summary, Amount::Changes, Amount::Full] {
        let view = PlanView { inventory: Some(inventory), amount, ..PlanView::default() };
        shown(&report::plan_text(plan, &view, &Style::PLAIN));
    }
    let _ = report::json(plan);
    let _ = (plan::seal(plan), plan::plan_digest(plan));
    let _ = (plan::guards(plan, inventory), plan::stale(plan, inventory));
    shown(&report::consent_text(&plan::consent(plan), &Style::PLAIN));
}

/// An inventory file.
fn inventory(data: &[u8]) {
    match parse_inventory(&String::from_utf8_lossy(data)) {
        Err(error) => shown(&error.to_string()),
        Ok(inventory) => {
            let text = serde_json::to_string(&inventory).expect("plain data");
            assert_eq!(parse_inventory(&text).as_ref(), Ok(&inventory), "what was read reads back alike");
            seen(&inventory, &ObservedSpecs::new());
        }
    }
}

/// A flock.lock. What is read is what is written, and all of it can be sized.
fn lock(data: &[u8]) {
    match Lock::parse(&String::from_utf8_lossy(data)) {
        Err(error) => {
            assert!(error.line > 0 && error.column > 0, "{error:?}");
            // A finding shows it so.
            shown(&Diagnostic::error("FLK216", &Place::start_of("flock.lock"), error.message).message);
        }
        Ok(lock) => {
            let text = lock.render();
            assert_eq!(Lock::parse(&text).as_ref(), Ok(&lock), "what was read is written alike");
            for variant in lock.models.values().flat_map(|model| &model.sources).flat_map(|source| &source.variants) {
                variant.notes.iter().for_each(|note| shown(note));
                sized(&variant.variant());
            }
        }
    }
}

/// The beginning of an engine's log.
fn engine_log(data: &[u8]) {
    let log = String::from_utf8_lossy(data);
    for kind in EngineKind::ALL {
        let found = read_memory(*kind, &log);
        assert!(found.devices.len() <= 64, "{} devices", found.devices.len());
        let _ = found.devices.iter().chain(&found.host).filter_map(DeviceMemory::total).fold(0, u64::saturating_add);
    }
}

/// A saved plan.
fn plan_file(data: &[u8]) {
    if let Err(error) = refuse_control_characters(&String::from_utf8_lossy(data)) {
        return shown(&error.to_string());
    }
    match serde_json::from_slice::<Plan>(data) {
        Err(error) => shown(&error.to_string()),
        Ok(plan) => WORLD.with_borrow(|world| whole_plan(&plan, &world.inventory)),
    }
}

/// The known_hosts text, parted by [`NEXT`] from a host name.
fn known_hosts(data: &[u8]) {
    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";
    let mut parts = parts(data).map(String::from_utf8_lossy);
    let text = parts.next().unwrap_or_default();
    let host = parts.next().unwrap_or_else(|| "ada-1".into());
    for port in [22, 2222] {
        assert!(known_host(&text, &host, port, KEY).is_some(), "the key is one");
    }
}

/// The formatter. What has no syntax error is formatted, once for good, to what says the same; all else is refused.
fn format(data: &[u8]) {
    let load = |bytes: &[u8]| {
        let mut tree = Tree::new();
        tree.insert("cluster.kdl", TreeEntry::File(bytes.to_vec()));
        let loaded = config::load(&tree);
        let said = loaded.diagnostics.into_iter().map(|found| (found.id, found.message, found.hint));
        (loaded.config_digest, said.collect::<Vec<_>>())
    };
    let (digest, said) = load(data);
    let once = match config::format_kdl("cluster.kdl", data) {
        Ok(once) => once,
        Err(Unformatted::Invalid(found)) => {
            assert!(!found.is_empty(), "refused for nothing");
            return found.iter().for_each(|one| shown(&one.message));
        }
        Err(Unformatted::Unproven(why)) => panic!("it cannot prove itself right: {why}"),
    };
    let text = std::str::from_utf8(data).expect("what is formatted is UTF-8");
    assert_eq!(config::format_kdl("cluster.kdl", once.as_bytes()).as_ref(), Ok(&once), "formatted twice");
    // Whatever is no layout, of comments and texts too, stays as it is and where it is.
    let kept = |text: &str| -> String {
        let layout = |c: &char| c.is_whitespace() || matches!(c, ';' | '\\');
        text.chars().filter(|c| !layout(c)).collect()
    };
    assert_eq!(kept(text), kept(&once));
    assert_eq!((digest, said), load(once.as_bytes()), "{once:?} means something else");
}

/// An SSH config, parted by [`NEXT`] from a host name: the way there, or why flock does not go it.
fn ssh_config(data: &[u8]) {
    let mut parts = parts(data).map(String::from_utf8_lossy);
    let text = parts.next().unwrap_or_default();
    let host = parts.next().unwrap_or_else(|| "ada-1.lab".into());
    // A name of the config: what a host name may hold was checked there.
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || ".-_:%".contains(*c)).collect();
    let environment = SshEnvironment {
        home: "/home/ada".into(),
        user: "ada".to_owned(),
        config: "/home/ada/.ssh/config".into(),
        system_config: "/etc/ssh/ssh_config".into(),
        agent_socket: None,
    };
    match ssh_way(&text, &host, &environment) {
        Ok(way) => {
            assert!(!way.contains(|c: char| c.is_control() || is_obeyed(c)), "{way:?}");
            assert_eq!(ssh_way(&text, &host, &environment).ok(), Some(way), "it is found again");
        }
        Err(error) => {
            shown(&error.to_string());
            shown(&error.hint().unwrap_or_default());
        }
    }
}

/// Findings that say anything about files of any name, as text and for code hosts. One finding per part, its fields in
/// lines: message, hint, file, second file, what it has to do with it; the first character says place and weight.
fn findings(data: &[u8]) {
    let all: Vec<Diagnostic> = parts(data).map(finding).collect();
    let prefix = String::from_utf8_lossy(&data[..data.len().min(3)]).into_owned();
    let mut tree = Tree::new();
    for file in all.iter().filter_map(|one| one.file.as_ref()) {
        tree.insert(file, TreeEntry::File(data.to_vec()));
    }
    shown(&report::diagnostics_text(&all, &tree, &Style::PLAIN));

    let annotations = report::github_annotations(&all, &prefix);
    shown(&annotations);
    for severity in ["error", "warning"] {
        let (command, line) = (format!("::{severity} "), format!("{severity}["));
        let commands = annotations.lines().filter(|line| line.starts_with(&command)).count();
        let lines = annotations.lines().filter(|one| one.starts_with(&line)).count();
        let of_kind = all.iter().filter(|one| format!("{:?}", one.severity).eq_ignore_ascii_case(severity)).count();
        assert!(commands <= 10, "{annotations}");
        // Beyond nine, the last command counts the rest.
        assert_eq!(commands + lines, of_kind + usize::from(of_kind > 9), "{annotations}");
    }
    let ours = ["::error ", "::warning ", "error[", "warning["];
    assert!(annotations.lines().all(|line| ours.iter().any(|begin| line.starts_with(begin))), "{annotations}");

    let comment = report::findings_markdown(&all, "invalid");
    shown(&comment);
    assert!(comment.chars().count() <= report::MAX_COMMENT);
    let rows: Vec<&str> =
        comment.lines().filter(|line| line.starts_with("| error&") || line.starts_with("| warning&")).collect();
    assert_eq!(rows.len(), all.len(), "{comment}");
    assert!(rows.iter().all(|row| row.replace("\\|", "").matches('|').count() == 5), "a row has four cells: {comment}");
    let tag = |line: &&str| line.replace("<br>", "").contains(['<', '>', '@']);
    assert!(rows.iter().all(|row| !tag(row) || row.contains('`')), "markup: {comment}");

    let document = report::sarif(&all, &prefix);
    shown(&document);
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document["runs"][0]["results"].as_array().map(Vec::len), Some(all.len().min(report::MAX_RESULTS)));
    shown(&report::json(&report::Validation::of(&all)));
}

fn finding(part: &[u8]) -> Diagnostic {
    let text = String::from_utf8_lossy(part);
    let mut lines = text.splitn(6, '\n').map(|line| line.replace("\\n", "\n"));
    let first = lines.next().unwrap_or_default();
    let weight = first.bytes().next().unwrap_or_default();
    let (hint, file, other, why) = (lines.next(), lines.next(), lines.next(), lines.next());
    let place = |file: String| {
        let (line, column) = (usize::from(weight % 8) + 1, usize::from(weight / 8) + 1);
        let end_line = line + usize::from(weight % 3 == 0);
        Place { file: file.into(), line, column, end_line, end_column: column + usize::from(weight % 5) }
    };
    let message = if first.is_empty() { "m".to_owned() } else { first };
    let mut made = match file {
        Some(file) if weight.is_multiple_of(2) => Diagnostic::error("FLK110", &place(file), message),
        Some(file) => Diagnostic::warning("FLK190", &place(file), message),
        None => Diagnostic::general("FLK107", Severity::Error, message),
    };
    made = hint.into_iter().fold(made, Diagnostic::hint);
    if let (Some(file), Some(why)) = (other, why) {
        made = made.related(&place(file), why);
    }
    made
}

/// A small cluster that facts and plans are held against.
struct World {
    desired: config::Desired,
    candidates: Candidates,
    inventory: Inventory,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(world());
}

fn world() -> World {
    let text = "cluster \"lab\"\nnode \"ada-1\" address=\"10.0.0.1\"\nnode \"ada-2\" address=\"10.0.0.2\"\n\
                model \"m\" { source \"path:m.gguf\"; engine \"llama.cpp\"; replicas min=2 max=2; context 4096 }\n\
                model \"n\" { source \"path:m.gguf\"; engine \"llama.cpp\"; place { allow cpu=#true } }\n";
    let mut tree = Tree::new();
    tree.insert("cluster.kdl", TreeEntry::File(text.as_bytes().to_vec()));
    tree.insert("m.gguf", TreeEntry::Present { size: 1 });
    let loaded = config::load(&tree);
    let desired = loaded.desired.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let variants = weights(&[("m.gguf", include_bytes!("corpus/gguf/llama"))], 0);
    let candidates: Vec<Candidate> = variants
        .into_iter()
        .map(|variant| Candidate {
            label: "m".to_owned(),
            source: "path:m.gguf".to_owned(),
            variant,
            revision: "sha256:0".to_owned(),
            files: Vec::new(),
            projector: None,
            origin: Origin::Controller { folder: "/models".to_owned() },
            gated: None,
        })
        .collect();
    assert!(!candidates.is_empty(), "the sample is a model");
    let candidates: BTreeMap<_, _> = ["m", "n"].into_iter().map(|m| (m.to_owned(), Ok(candidates.clone()))).collect();
    let inventory = parse_inventory(include_str!("corpus/inventory/two-nodes")).expect("a valid inventory");
    World { desired, candidates, inventory }
}
