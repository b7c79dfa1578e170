//! `flock-agent serve`: one connection, request by request, until the stream ends.

use std::fs::File;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use super::error::AgentError;
use super::files::read_json;
use super::frames::{read_message, skip_to_hello, write_message};
use super::layout::{Layout, check_folder, check_name, expand_home};
use super::relay::Answer;
use super::version::version;
use super::{
    clock, doctor, download, endpoints, handover, lease, listener, measure, measured, net, probe, relay, state, store,
};
use crate::base::Secret;
use crate::inventory::{FrameError, HELLO, Refusal, Request, Response};

/// Most bytes of a log in one answer.
const MAX_LOG: u64 = 8 << 20;

/// Says hello and answers until the input ends.
pub fn serve(layout: &Layout, input: &mut impl BufRead, output: &mut impl Write) -> Result<(), AgentError> {
    let hello = writeln!(output, "{HELLO}").and_then(|()| output.flush());
    hello.map_err(|source| AgentError::Stream { action: "writing the hello line", source })?;
    if !skip_to_hello(input)? {
        return Ok(());
    }
    loop {
        let response = match read_message::<Request>(input) {
            Ok(None) => return Ok(()),
            Ok(Some(request)) => match answer(layout, request, input, output) {
                Ok(response) => response,
                Err(error @ (AgentError::Stream { .. } | AgentError::Frame(_))) => return Err(error),
                Err(error) => Answer::Own(Response::Refused { refusal: error.into() }),
            },
            // A whole frame that says something else: a request of another version. The stream is still in step.
            Err(AgentError::Frame(FrameError::Json(problem))) => {
                let text = format!("flock-agent {} does not understand this request: {problem}", version());
                Answer::Own(Response::Refused { refusal: Refusal::Failed { text } })
            }
            Err(error) => return Err(error),
        };
        write_message(output, &response)?;
    }
}

fn answer(
    layout: &Layout,
    request: Request,
    input: &mut impl Read,
    output: &mut impl Write,
) -> Result<Answer, AgentError> {
    let response = match request {
        Request::Probe { engines, weights_path, on_node } => {
            probe::probe(layout, &engines, weights_path.as_deref(), &on_node, relay::is_supervising(layout))
        }
        Request::Instances => {
            let supervised = relay::is_supervising(layout);
            let (instances, _) = state::instances(layout, supervised)?;
            Ok(Response::Instances { instances, supervised })
        }
        Request::Lease { lease, ttl_ms, expected_generation } => {
            lease::take(layout, &lease, ttl_ms, expected_generation, clock::now_ms()).map(|()| Response::Done)
        }
        Request::Release { id } => lease::release(layout, &id).map(|()| Response::Done),
        Request::BreakLease => lease::break_lease(layout).map(|()| Response::Done),
        Request::WriteMember { member } => lease::write_member(layout, &member).map(|()| Response::Done),
        Request::FetchState { fetch } => store::check(&fetch).and_then(|folder| {
            // First, so that nobody removes what is found to be there.
            store::claim(layout, &folder);
            store::state(&fetch)
        }),
        Request::Put { fetch, name, offset } => store::put(&fetch, &name, offset, input),
        Request::FetchDone { fetch } => store::done(&fetch),
        Request::Download { fetch, from, token, limit_bytes_per_s } => {
            let mut tell = |have_bytes| write_message(output, &Response::Progress { have_bytes });
            download::download(&fetch, &from, token.as_ref(), limit_bytes_per_s, &mut tell)
        }
        Request::Offer { fetch, key, ttl_ms } => handover::offer(&fetch, &key, ttl_ms, &listener::reached()),
        Request::Take { fetch, addresses, port, key, limit_bytes_per_s } => {
            let from = handover::Taking { addresses: &addresses, port, key: &key, limit_bytes_per_s };
            let mut tell = |have_bytes| write_message(output, &Response::Progress { have_bytes });
            handover::take(&fetch, &from, &mut tell)
        }
        Request::Collect { weights_path, keep, accounted, dry_run, min_age_s } => {
            let root = weights_path.map_or_else(|| layout.default_weights(), |path| expand_home(&path, &layout.home));
            let root = check_folder(&root.display().to_string())?;
            let min_age = Duration::from_secs(min_age_s);
            store::collect(layout, &store::Collect { root: &root, keep: &keep, accounted, dry_run, min_age })
        }
        Request::History => Ok(Response::History { applies: lease::history(layout) }),
        Request::Listeners { low, high } => {
            let (_, ours) = state::instances(layout, relay::is_supervising(layout))?;
            net::listeners(low, high, &ours).map(|listeners| Response::Listeners { listeners })
        }
        Request::Doctor { engines, weights_path, ports } => {
            doctor::look(layout, &engines, weights_path.as_deref(), ports)
        }
        Request::Key { instance } => key(layout, &instance),
        Request::Log { instance, from, max_bytes } => log(layout, &instance, from, max_bytes),
        Request::Ping => Ok(Response::Done),
        Request::MeasureListen { key, ttl_ms } => measure::listen(&key, ttl_ms),
        Request::MeasureConnect { peer, addresses, port, key, fallback_rtt_us } => {
            check_name("node", &peer)?;
            let link = measure::connect(&peer, &addresses, port, &key, fallback_rtt_us)?;
            measured::keep_link(layout, &link, clock::now_ms())?;
            Ok(Response::Link { link })
        }
        Request::MeasureEndpoints { endpoints } => {
            let endpoints = endpoints::measure(endpoints)?;
            measured::keep_endpoints(layout, &endpoints, clock::now_ms())?;
            Ok(Response::Endpoints { endpoints })
        }
        Request::Start { .. } | Request::Stop { .. } | Request::Supervise { .. } | Request::Forget { .. } => {
            if let Request::Start { spec, .. } = &request {
                let brought = spec.weights.iter().filter(|set| set.revision.is_some());
                brought.for_each(|set| store::claim(layout, Path::new(&set.folder)));
            }
            return relay::ask_keeper(layout, &request);
        }
    };
    response.map(Answer::Own)
}

fn key(layout: &Layout, instance: &str) -> Result<Response, AgentError> {
    check_name("instance", instance)?;
    let unknown = || Refusal::Unknown { what: format!("instance {instance}") };
    let record: state::Record = read_json(&layout.instance_state(instance))?.ok_or_else(unknown)?;
    let path = layout.key(instance);
    let key = match std::fs::read_to_string(&path) {
        Ok(key) => key.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(unknown().into()),
        Err(error) => return Err(AgentError::file("reading", &path)(error)),
    };
    Ok(Response::Key { key: Secret::new(key), port: record.port, served_name: record.spec.served_name })
}

fn log(layout: &Layout, instance: &str, from: Option<u64>, max_bytes: u64) -> Result<Response, AgentError> {
    check_name("instance", instance)?;
    let path = layout.log(instance);
    if !path.exists() {
        return Err(Refusal::Unknown { what: format!("log of instance {instance}") }.into());
    }
    let (next, bytes) = piece(&path, from, max_bytes.min(MAX_LOG)).map_err(AgentError::file("reading", &path))?;
    Ok(Response::Log { next, text: String::from_utf8_lossy(&bytes).into_owned() })
}

/// A piece of a file and the position after it. A position beyond the end means that the log was cut since:
/// reading begins anew.
fn piece(path: &Path, from: Option<u64>, max_bytes: u64) -> std::io::Result<(u64, Vec<u8>)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = match from {
        Some(from) if from <= length => from,
        Some(_) => 0,
        None => length.saturating_sub(max_bytes),
    };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok((from + bytes.len() as u64, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::json_frame;

    fn talk(layout: &Layout, requests: &[Request]) -> Vec<Response> {
        let mut input = format!("banner\n{HELLO}\n").into_bytes();
        for request in requests {
            input.extend(json_frame(request).expect("a frame"));
        }
        let mut output = Vec::new();
        serve(layout, &mut input.as_slice(), &mut output).expect("served");
        let mut answers = std::io::BufReader::new(output.as_slice());
        assert!(skip_to_hello(&mut answers).expect("read"));
        std::iter::from_fn(|| read_message(&mut answers).expect("a message")).collect()
    }

    #[test]
    fn looking_makes_nothing() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        let probe = Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() };
        let key = Request::Key { instance: "abc".into() };
        let answers = talk(&layout, &[probe, Request::Instances, key]);
        let Response::Facts { node, desired, .. } = &answers[0] else { panic!("{answers:?}") };
        assert!(node.ram.total_bytes.is_some_and(|bytes| bytes > 0) && node.cpu.threads.is_some());
        assert!(node.agent.as_ref().is_some_and(|agent| !agent.supervising) && desired.is_empty());
        assert_eq!(answers[1], Response::Instances { instances: Vec::new(), supervised: false });
        assert!(matches!(answers[2], Response::Refused { refusal: Refusal::Unknown { .. } }));
        assert_eq!(std::fs::read_dir(home.path()).expect("listed").count(), 0);
    }

    #[test]
    fn a_request_of_another_version_is_refused_and_the_next_one_answered() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        let mut input = format!("{HELLO}\n").into_bytes();
        input.extend(json_frame(&serde_json::json!({ "request": "levitate", "height": 3 })).expect("a frame"));
        input.extend(json_frame(&Request::Instances).expect("a frame"));
        let mut output = Vec::new();
        serve(&layout, &mut input.as_slice(), &mut output).expect("served");
        let mut answers = std::io::BufReader::new(output.as_slice());
        assert!(skip_to_hello(&mut answers).expect("read"));
        let refused: Response = read_message(&mut answers).expect("a message").expect("an answer");
        let Response::Refused { refusal: Refusal::Failed { text } } = &refused else { panic!("{refused:?}") };
        assert!(text.contains("levitate") && text.contains(version()), "{text}");
        let next: Response = read_message(&mut answers).expect("a message").expect("an answer");
        assert_eq!(next, Response::Instances { instances: Vec::new(), supervised: false });
    }

    #[test]
    fn names_from_the_wire_are_checked() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        let log = Request::Log { instance: "../../x".into(), from: None, max_bytes: 10 };
        let answers = talk(&layout, &[Request::Key { instance: "../x".into() }, log]);
        assert!(answers.iter().all(|answer| matches!(answer, Response::Refused { refusal: Refusal::Failed { .. } })));
    }

    #[test]
    fn a_log_is_read_from_its_end_or_onwards() {
        let home = tempfile::tempdir().expect("a home");
        let path = home.path().join("log");
        std::fs::write(&path, "0123456789").expect("written");
        assert_eq!(piece(&path, None, 4).expect("read"), (10, b"6789".to_vec()));
        assert_eq!(piece(&path, Some(2), 3).expect("read"), (5, b"234".to_vec()));
        assert_eq!(piece(&path, Some(99), 3).expect("read"), (3, b"012".to_vec()));
    }
}
