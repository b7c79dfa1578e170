//! What happens when the hub, its content network or the way to them breaks: by route and kind of fault, what comes
//! of it and how many requests that took.

use std::time::Duration;

use flock::edge::{HfHub, HubLimits, HubSettings};
use flock::ports::{Hub as _, HubError};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::{client, pattern, refused, settings};
use crate::support::hub::StandInHub;

/// What comes of a fault that lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    /// As without it.
    Fine,
    Unreachable,
    Nonsense,
    /// With the wait that the hub asked for.
    Busy(u64),
}

impl Outcome {
    fn of<T>(outcome: &Result<T, HubError>) -> Self {
        match outcome {
            Ok(_) => Self::Fine,
            Err(HubError::Unreachable { .. }) => Self::Unreachable,
            Err(HubError::Nonsense { .. }) => Self::Nonsense,
            Err(HubError::Busy { retry_after_s, .. }) => Self::Busy(retry_after_s.unwrap_or(0)),
            Err(other) => panic!("{other}"),
        }
    }
}

/// For faults that last until it gives up.
fn hurried(hub: &StandInHub) -> HfHub {
    let slow = settings(hub);
    let limits = HubLimits { request: Duration::from_millis(2500), stall: Duration::from_millis(1500), ..slow.limits };
    HfHub::new(HubSettings { limits, ..slow }).expect("sound settings")
}

/// Faults that every request may have, what comes of them where they last, and the requests that it takes then.
fn common() -> Vec<(Value, Outcome, usize)> {
    use Outcome::*;
    vec![
        (json!({"kind": "drop", "bytes": -1}), Unreachable, 3),
        (json!({"kind": "drop", "bytes": -1, "reset": true}), Unreachable, 3),
        (json!({"kind": "headers"}), Unreachable, 3),
        (json!({"kind": "stall", "bytes": -1}), Unreachable, 3),
        (json!({"kind": "status", "status": 500}), Unreachable, 3),
        (json!({"kind": "status", "status": 502, "body": "<html>bad gateway</html>"}), Unreachable, 3),
        (json!({"kind": "status", "status": 503, "headers": {"Retry-After": "0"}}), Unreachable, 3),
        (json!({"kind": "status", "status": 429}), Busy(0), 3),
        (json!({"kind": "status", "status": 429, "headers": {"Retry-After": "0"}}), Busy(0), 3),
        (json!({"kind": "status", "status": 429, "headers": {"Retry-After": "3600"}}), Busy(3600), 1),
        (json!({"kind": "status", "status": 400, "body": {"error": "what?"}}), Nonsense, 1),
        (json!({"kind": "status", "status": 416}), Nonsense, 1),
        (json!({"kind": "html"}), Nonsense, 1),
        (json!({"kind": "loop"}), Nonsense, 11),
    ]
}

/// Further ones of answers that are JSON.
fn of_json() -> Vec<(Value, Outcome, usize)> {
    use Outcome::*;
    vec![
        (json!({"kind": "drop", "bytes": 0}), Unreachable, 3),
        (json!({"kind": "drop", "bytes": 20}), Unreachable, 3),
        (json!({"kind": "drop", "bytes": 20, "reset": true}), Unreachable, 3),
        (json!({"kind": "length", "delta": 10}), Unreachable, 3),
        (json!({"kind": "length", "delta": -10}), Nonsense, 1),
        (json!({"kind": "stall", "bytes": 20}), Unreachable, 3),
        (json!({"kind": "trickle", "rate": 20}), Unreachable, 3),
        (json!({"kind": "json", "body": "text"}), Nonsense, 1),
        (json!({"kind": "json", "body": {"error": "x"}}), Nonsense, 1),
    ]
}

/// Requests that are sent once more below us: where a connection that was kept turns out to have ended.
fn unseen(fault: &Value) -> usize {
    if fault["kind"] == "drop" && fault["bytes"] == -1 { 3 } else { 0 }
}

/// Whether a fault may end only where somebody gives up; all others are told at once, however slow this machine is.
fn lasts(fault: &Value) -> bool {
    let at_once = ["drop", "headers", "html", "json", "loop", "status"];
    !fault["kind"].as_str().is_some_and(|kind| at_once.contains(&kind))
}

/// A fault that every request of a route has.
fn on(route: &str, mut fault: Value) -> Value {
    fault["on"] = route.into();
    fault
}

/// The same, for the first request alone.
fn once(mut fault: Value) -> Value {
    fault["times"] = 1.into();
    fault
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_a_listing() {
    let hub = StandInHub::start();
    hub.repository("ada/m", &json!({"many": {"count": 40}}), &[("m.gguf", b"GGUF"), ("config.json", b"{}")]);
    let (hurried, patient) = (hurried(&hub), client(&hub));
    for route in ["info", "tree"] {
        for (fault, expected, tries) in common().into_iter().chain(of_json()) {
            let client = if lasts(&fault) { &hurried } else { &patient };
            hub.fault(on(route, fault.clone()));
            let before = hub.requests().len();
            let outcome = client.repository("ada/m", None).await;
            assert_eq!(Outcome::of(&outcome), expected, "{route} {fault}: {outcome:?}");
            let requests = tries + usize::from(route == "tree");
            let took = hub.requests_settled(before, requests).len();
            assert!((requests..=requests + unseen(&fault)).contains(&took), "{route} {fault}: {took}");
            hub.heal();

            // What passes is survived.
            if tries == 3 {
                hub.fault(once(on(route, fault.clone())));
                let outcome = client.repository("ada/m", None).await;
                assert_eq!(outcome.expect("another try").files.len(), 42, "{route} {fault}");
                hub.heal();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_the_bytes_of_a_file() {
    use Outcome::*;
    let hub = StandInHub::start();
    let weights = pattern(400_000);
    hub.repository("ada/m", &json!({}), &[("m.gguf", &weights)]);
    let (hurried, patient, commit) = (hurried(&hub), client(&hub), hub.commit("ada/m"));
    let of_bytes = [
        (json!({"kind": "length", "delta": 10}), Nonsense, 1),
        (json!({"kind": "length", "delta": -10}), Nonsense, 1),
        (json!({"kind": "shift", "by": 7}), Nonsense, 1),
        (json!({"kind": "unsaid"}), Nonsense, 1),
        (json!({"kind": "drop", "bytes": 0}), Unreachable, 3),
        (json!({"kind": "stall", "bytes": 0}), Unreachable, 3),
        // Each try gains something, so that these end well however often they happen.
        (json!({"kind": "drop", "bytes": 100_000}), Fine, 3),
        (json!({"kind": "drop", "bytes": 100_000, "reset": true}), Fine, 3),
        (json!({"kind": "short", "bytes": 150_000}), Fine, 2),
        (json!({"kind": "whole"}), Fine, 1),
    ];
    for route in ["resolve", "cdn"] {
        let further: &[_] = if route == "cdn" { &of_bytes } else { &[] };
        for (fault, expected, requests) in common().iter().chain(further) {
            let client = if lasts(fault) { &hurried } else { &patient };
            hub.fault(on(route, fault.clone()));
            let before = hub.requests().len();
            let outcome = client.read("ada/m", &commit, "m.gguf", 1000, 300_000).await;
            assert_eq!(Outcome::of(&outcome), *expected, "{route} {fault}: {outcome:?}");
            let (took, server) = if route == "cdn" { (2 * requests, "cdn") } else { (*requests, "hub") };
            let took = hub.requests_settled(before, took);
            let took = took.iter().filter(|request| request.server == server).count();
            if *expected != Fine {
                // The way to the content network is a redirect already.
                let requests = if route == "cdn" && fault["kind"] == "loop" { 10 } else { *requests };
                assert!((requests..=requests + unseen(fault)).contains(&took), "{route} {fault}: {took}");
            }
            if let Ok(bytes) = outcome {
                assert!(bytes == weights[1000..301_000], "{fault}");
            }
            hub.heal();
            if *requests == 3 {
                hub.fault(once(on(route, fault.clone())));
                let bytes = client.read("ada/m", &commit, "m.gguf", 1000, 300_000).await.expect("another try");
                assert!(bytes == weights[1000..301_000], "{route} {fault}");
                hub.heal();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_breaks_off_goes_on_where_it_broke() {
    let hub = StandInHub::start();
    let weights = pattern(1_000_000);
    hub.repository("ada/m", &json!({}), &[("m.gguf", &weights)]);
    let (client, commit) = (hurried(&hub), hub.commit("ada/m"));
    for fault in [
        json!({"kind": "drop", "bytes": 150_000}),
        json!({"kind": "drop", "bytes": 150_000, "reset": true}),
        json!({"kind": "stall", "bytes": 400_000}),
        json!({"kind": "drop", "bytes": 0, "times": 2}),
    ] {
        let before = hub.requests().len();
        hub.fault(on("cdn", fault.clone()));
        let mut bytes = Vec::new();
        let mut file = client.open("ada/m", &commit, "m.gguf", 10).await.expect("opened");
        file.read_to_end(&mut bytes).await.unwrap_or_else(|error| panic!("{fault}: {error}"));
        assert!(bytes == weights[10..], "{fault}: {} bytes", bytes.len());
        hub.heal();
        let sent: u64 = hub.requests_since(before).iter().filter(|r| r.server == "cdn").map(|r| r.bytes).sum();
        // What a reset connection still had under way is sent again.
        let again = if fault["reset"] == true { 800_000 } else { 0 };
        assert!((999_990..=999_990 + again).contains(&sent), "{fault}: {sent} bytes were sent");
    }
    // A trickle is no download.
    hub.fault(on("cdn", json!({"kind": "trickle", "rate": 1000})));
    let mut file = client.open("ada/m", &commit, "m.gguf", 0).await.expect("opened");
    let error = file.read_to_end(&mut Vec::new()).await.expect_err("it is too slow");
    assert!(error.to_string().contains("only"), "{error}");
    hub.heal();
    // What lasts is told as what it is, and not as the end of the file.
    hub.fault(on("cdn", json!({"kind": "drop", "bytes": 0, "after": 1})));
    hub.fault(on("cdn", json!({"kind": "drop", "bytes": 5000, "times": 1})));
    let mut file = client.open("ada/m", &commit, "m.gguf", 0).await.expect("opened");
    let mut bytes = Vec::new();
    let error = file.read_to_end(&mut bytes).await.expect_err("it breaks");
    assert_eq!(bytes.len(), 5000);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<HubError>());
    assert!(matches!(inner, Some(HubError::Unreachable { .. })), "{error}");
    hub.heal();
    hub.fault(on("cdn", json!({"kind": "drop", "bytes": -1})));
    let error = refused(client.open("ada/m", &commit, "m.gguf", 0).await.map(|_| ()));
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_ranges_is_not_read_to_the_end() {
    let hub = StandInHub::start();
    let size = 140_000_000_000_u64;
    hub.repository("ada/big", &json!({"files": {"m.safetensors": {"size": size, "seed": 5}}}), &[]);
    let (client, commit) = (client(&hub), hub.commit("ada/big"));
    let truth = client.read("ada/big", &commit, "m.safetensors", 0, 3_000_000).await.expect("read");
    hub.fault(json!({"kind": "whole", "on": "cdn"}));
    for (offset, length) in [(0, 8), (8, 100_000), (2_000_000, 1_000_000)] {
        let bytes = client.read("ada/big", &commit, "m.safetensors", offset, length).await.expect("read");
        assert!(bytes == truth[offset as usize..(offset + length) as usize]);
    }
    let error = refused(client.read("ada/big", &commit, "m.safetensors", size - 10, 10).await);
    assert!(matches!(&error, HubError::Nonsense { reason, .. } if reason.contains("ignores ranges")), "{error}");
    // No request had more than a connection's buffers too much.
    let most = hub.requests().iter().map(|request| request.bytes).max().expect("some");
    assert!(most < 16 << 20, "{most} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_no_hub_would_give() {
    let hub = StandInHub::start();
    hub.repository("ada/m", &json!({"many": {"count": 1500}, "commits": ["a".repeat(40)]}), &[("m.gguf", b"GGUF")]);
    let client = client(&hub);
    let file = |path: &str| json!({"type": "file", "oid": "x", "size": 1, "path": path});
    let large = |oid: &str| json!({"type": "file", "path": "m", "size": 1, "lfs": {"oid": oid, "size": 1}});
    let trees = [
        json!([file("../../etc/passwd")]),
        json!([file("/etc/passwd")]),
        json!([file("a\\b")]),
        json!([file("a\u{1b}[2Jb")]),
        json!([file("a\u{202e}b")]),
        json!([file("")]),
        json!([file("a"), file("b"), file("a")]),
        json!([{"type": "file", "path": "m"}]),
        json!([{"type": "file", "path": "m", "size": -1}]),
        json!([{"type": "file", "path": "m", "size": 1e30}]),
        json!([{"type": "file", "path": "m", "size": u64::MAX}]),
        json!([large("abc")]),
        json!([large(&"g".repeat(64))]),
    ];
    for tree in trees {
        hub.fault(json!({"kind": "json", "on": "tree", "body": tree}));
        let error = refused(client.repository("ada/m", None).await);
        assert!(matches!(error, HubError::Nonsense { .. }), "{tree}: {error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
        hub.heal();
    }
    let infos = [
        json!({"id": "ada/m"}),
        json!({"id": "ada/m", "sha": "main"}),
        json!({"id": "../m", "sha": "a".repeat(40)}),
        json!({"id": "ada/m\u{1b}[2J", "sha": "a".repeat(40)}),
        json!({"sha": "a".repeat(40)}),
        json!([]),
    ];
    for info in infos {
        hub.fault(json!({"kind": "json", "on": "info", "body": info}));
        let error = refused(client.repository("ada/m", None).await);
        assert!(matches!(error, HubError::Nonsense { .. }), "{info}: {error}");
        hub.heal();
    }
    // Another commit than the one that was pinned, a page that leads to itself, and one that never ends.
    hub.fault(json!({"kind": "json", "on": "info", "body": {"id": "ada/m", "sha": "b".repeat(40)}}));
    let error = refused(client.repository("ada/m", Some(&"a".repeat(40))).await);
    assert!(matches!(error, HubError::Nonsense { .. }), "{error}");
    hub.heal();
    let commit = hub.commit("ada/m");
    let itself = format!("{}/api/models/ada/m/tree/{commit}?recursive=true", hub.endpoint());
    hub.fault(json!({"kind": "link", "on": "tree", "url": itself}));
    let error = refused(client.repository("ada/m", None).await);
    assert!(matches!(&error, HubError::Nonsense { reason, .. } if reason.contains("circle")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_the_hub_asks_for_is_kept() {
    let hub = StandInHub::start();
    hub.repository("ada/m", &json!({}), &[("m.gguf", b"GGUF")]);
    let (client, commit) = (client(&hub), hub.commit("ada/m"));
    let drafted = json!({"RateLimit": "\"resolvers\";r=0;t=1"});
    for headers in [json!({"Retry-After": "1"}), drafted] {
        hub.fault(json!({"kind": "status", "status": 429, "on": "resolve", "times": 1, "headers": headers}));
        let begin = std::time::Instant::now();
        assert_eq!(client.read("ada/m", &commit, "m.gguf", 0, 4).await.expect("read"), b"GGUF");
        assert!(begin.elapsed() >= Duration::from_secs(1), "{headers}");
    }
}
