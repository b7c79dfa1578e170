//! Fetches by each way, against nodes that answer what the test says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::step::{StepContext, StepError};
use crate::inventory::{FetchFile, HubFiles, Refusal, Request, Response};
use crate::plan::testing::{Wish, World};
use crate::plan::{FetchFrom, Plan, Step, Verb};
use crate::ports::testing::{NamedHub, SaidNode};
use crate::ports::{Hub, Node, NodeError, Random};

const HUB: &str = "https://hub.example";

/// Counts up, so that no key is twice.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Random for Counter {
    fn hex(&self, bytes: usize) -> String {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        format!("{number:0width$x}", width = 2 * bytes)
    }
}

fn files() -> HubFiles {
    HubFiles { endpoint: HUB.to_owned(), repository: "lab/coder".to_owned(), commit: "0".repeat(40) }
}

fn between(otherwise: FetchFrom) -> FetchFrom {
    FetchFrom::Node { node: "ada-2".to_owned(), folder: "/there".to_owned(), otherwise: Box::new(otherwise) }
}

/// A plan with one fetch to `ada-1` of two files, of which the first is there, by the given way.
fn planned(from: FetchFrom) -> Plan {
    let mut world = World::new(&[("ada-1", 1), ("ada-2", 1)]);
    world.want(&[Wish::new("coder", 3)], &[("coder", 0, "ada-1", vec![0], 18)]);
    let mut plan = world.plan();
    plan.steps.retain(|step| step.verb == Verb::Fetch);
    let step = &mut plan.steps[0];
    step.route = Some(from.route());
    let planned = step.fetch.as_mut().expect("a fetch");
    let file = |name: &str| FetchFile { name: name.to_owned(), size_bytes: 100, sha256: Some("sha256:0".to_owned()) };
    planned.fetch.files = vec![file("a"), file("b")];
    planned.from = from;
    planned.limit_bytes_per_s = Some(7);
    plan
}

fn lost() -> NodeError {
    NodeError::Lost { reason: "the cable is out".to_owned() }
}

fn refused(text: &str) -> NodeError {
    NodeError::Refused(Refusal::Failed { text: text.to_owned() })
}

/// The node that takes: what it says to each further `Download` or `Take`, at last that it is done.
fn taker(answers: Vec<NodeError>) -> Arc<SaidNode> {
    let answers = Mutex::new(VecDeque::from(answers));
    Arc::new(SaidNode::new("ada-1", move |request| {
        let answer = match request {
            Request::FetchState { .. } => Ok(Response::Fetched { complete: false, have_bytes: vec![100, 0] }),
            Request::Download { .. } | Request::Take { .. } => {
                answers.lock().expect("free").pop_front().map_or(Ok(Response::Done), Err)
            }
            _ => Ok(Response::Done),
        };
        Box::pin(async move { answer })
    }))
}

/// The node that sends, or does not.
fn sender(refuses: Option<NodeError>) -> Arc<SaidNode> {
    Arc::new(SaidNode::new("ada-2", move |_| {
        let answer = match &refuses {
            Some(error) => Err(error.clone()),
            None => Ok(Response::Listening { port: 4711, addresses: vec!["10.1.1.1".into(), "10.0.0.2".into()] }),
        };
        Box::pin(async move { answer })
    }))
}

/// Carries the fetch out; what was said meanwhile, and how it ended.
async fn fetched(
    from: FetchFrom,
    taker: &Arc<SaidNode>,
    sender: &Arc<SaidNode>,
    hub: Option<&dyn Hub>,
) -> (Vec<String>, Result<(), StepError>) {
    let plan = planned(from);
    let step: &Step = &plan.steps[0];
    let node = |node: &Arc<SaidNode>| Arc::clone(node) as Arc<dyn Node>;
    let nodes = BTreeMap::from([("ada-1".to_owned(), node(taker)), ("ada-2".to_owned(), node(sender))]);
    let addresses = BTreeMap::from([("ada-2".to_owned(), "10.0.0.2".to_owned())]);
    let said = Mutex::new(Vec::new());
    let context = StepContext {
        plan: &plan,
        generation: 4,
        node: node(taker),
        from_node: None,
        nodes: &nodes,
        addresses: &addresses,
        hub,
        random: &Counter::default(),
        progress: &|_| {},
        most: AtomicU64::new(0),
        note: &|text| said.lock().expect("free").push(text),
        away: &|node, text| said.lock().expect("free").push(format!("{node}: {text}")),
    };
    let result = context.run(step).await;
    (said.into_inner().expect("free"), result)
}

/// What a node was asked, by name, looks at what is there left out.
fn asked(node: &SaidNode) -> Vec<Request> {
    let asked = node.asked.lock().expect("free").clone();
    asked.into_iter().filter(|request| !matches!(request, Request::FetchState { .. })).collect()
}

#[tokio::test]
async fn a_node_downloads_with_the_token_of_the_hub_that_was_planned_and_of_no_other() {
    for (here, told) in [(HUB, true), ("https://hub.example/", true), ("https://other.example", false)] {
        let (node, other) = (taker(Vec::new()), sender(None));
        let (said, result) = fetched(FetchFrom::Hub(files()), &node, &other, Some(&NamedHub(here))).await;
        result.expect("downloaded");
        assert!(said.is_empty(), "{said:?}");
        let asked = asked(&node);
        let [Request::Download { from, token, limit_bytes_per_s, .. }, Request::FetchDone { .. }] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!((from, limit_bytes_per_s), (&files(), &Some(7)));
        assert_eq!(token.as_ref().map(|token| token.reveal().as_str()), told.then_some("hf_secret"), "{here}");
    }
}

#[tokio::test]
async fn the_controller_sends_what_is_missing_from_its_disk_or_from_the_hub() {
    let (node, other) = (taker(Vec::new()), sender(None));
    fetched(FetchFrom::Folder("/srv/coder".into()), &node, &other, None).await.1.expect("sent");
    assert_eq!(*node.sent.lock().expect("free"), ["/srv/coder b at 7"]);
    assert!(matches!(asked(&node)[..], [Request::FetchDone { .. }]));

    let (node, hub) = (taker(Vec::new()), NamedHub(HUB));
    fetched(FetchFrom::Relay(files()), &node, &other, Some(&hub)).await.1.expect("sent");
    assert_eq!(*node.sent.lock().expect("free"), ["lab/coder b at 7"]);

    let wrong = NamedHub("https://other.example");
    let error = fetched(FetchFrom::Relay(files()), &node, &other, Some(&wrong)).await.1.expect_err("another hub");
    assert_eq!(
        error.to_string(),
        "the plan takes weights from https://hub.example, and the hub here is https://other.example"
    );
    assert_eq!(error.hint().as_deref(), Some("set HF_ENDPOINT to https://hub.example, or plan again"));
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_is_tried_again_for_as_long_as_bytes_come() {
    // Every try brings something: five cuts of the cable, more than half a minute in all, are no failure.
    let (node, other) = (taker(vec![lost(); 60]), sender(None));
    node.progress.lock().expect("free").extend((1..=61).map(|step| 100 + step));
    let began = tokio::time::Instant::now();
    let (said, result) = fetched(FetchFrom::Hub(files()), &node, &other, None).await;
    result.expect("downloaded in the end");
    assert!(began.elapsed() > Duration::from_secs(40));
    assert_eq!(said[0], "ada-1: lost the node agent: the cable is out; trying again for 30 s");

    // And where nothing comes, it ends.
    let node = taker(vec![lost(); 60]);
    let (said, result) = fetched(FetchFrom::Hub(files()), &node, &other, None).await;
    assert!(matches!(result, Err(StepError::Node { .. })));
    assert_eq!(said.len(), 1, "{said:?}");
    let tries = asked(&node).iter().filter(|request| matches!(request, Request::Download { .. })).count();
    assert_eq!(tries, 31, "one a second");

    // A refusal is final.
    let node = taker(vec![refused("401: no token was sent")]);
    let (_, result) = fetched(FetchFrom::Hub(files()), &node, &other, None).await;
    let error = result.expect_err("refused");
    assert_eq!(error.to_string(), "ada-1: 401: no token was sent");
    // Where the line names the node already, it is not named twice.
    assert_eq!(error.text_on("ada-1"), "401: no token was sent");
    assert_eq!(error.text_on("ada-2"), "ada-1: 401: no token was sent");
    assert_eq!(asked(&node).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn files_that_another_connection_brings_are_waited_for() {
    let busy = || NodeError::Refused(Refusal::Busy { what: "b".to_owned() });
    for from in [FetchFrom::Hub(files()), between(FetchFrom::Hub(files()))] {
        let (node, other) = (taker(vec![busy(); 5]), sender(None));
        fetched(from.clone(), &node, &other, None).await.1.expect("in the end");
        // One that gets nowhere is not waited for for ever.
        let node = taker(vec![busy(); 500]);
        let error = fetched(from, &node, &other, None).await.1.expect_err("it stands still");
        assert!(error.to_string().contains("is being received already"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_node_sends_under_a_key_of_its_own_for_every_try() {
    let (node, other) = (taker(vec![lost(), refused("the other side went away")]), sender(None));
    node.progress.lock().expect("free").extend([120, 150, 200]);
    let (said, result) = fetched(between(FetchFrom::Hub(files())), &node, &other, None).await;
    result.expect("taken in the end");
    assert_eq!(said, ["ada-1: lost the node agent: the cable is out; trying again for 30 s"]);
    let offered: Vec<String> = asked(&other)
        .iter()
        .map(|request| match request {
            Request::Offer { fetch, key, .. } if fetch.folder == "/there" => key.reveal().clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let taken: Vec<String> = asked(&node)
        .iter()
        .filter_map(|request| match request {
            Request::Take { fetch, addresses, port: 4711, key, limit_bytes_per_s: Some(7) } => {
                assert_ne!(fetch.folder, "/there");
                assert_eq!(addresses, &["10.0.0.2", "10.1.1.1"], "what the config says comes first, and once");
                Some(key.reveal().clone())
            }
            _ => None,
        })
        .collect();
    assert_eq!(offered, taken);
    assert_eq!(taken.len(), 3);
    assert!(taken[0] != taken[1] && taken[1] != taken[2] && taken.iter().all(|key| key.len() == 64), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_cannot_meet_take_the_way_that_the_plan_holds_besides() {
    let hub = NamedHub(HUB);
    let cases = [
        (FetchFrom::Hub(files()), "from the hub"),
        (FetchFrom::Relay(files()), "through the controller"),
        (FetchFrom::Folder("/srv/coder".to_owned()), "from the controller"),
    ];
    for (otherwise, words) in cases {
        let (node, other) = (taker(vec![refused("no answer at 10.0.0.2:4711")]), sender(None));
        let (said, result) = fetched(between(otherwise.clone()), &node, &other, Some(&hub)).await;
        result.expect("by the other way");
        assert_eq!(said, [format!("ada-1 cannot take them from ada-2: no answer at 10.0.0.2:4711; {words} instead")]);
        assert!(matches!(asked(&node).last(), Some(Request::FetchDone { .. })));
    }
    // One whose disk turned a bit: all of it came, and would come again.
    let (expected, found) = ("sha256:0".to_owned(), "sha256:1".to_owned());
    let turned = NodeError::Refused(Refusal::Digest { file: "b".to_owned(), expected, found });
    let (node, other) = (taker(vec![turned]), sender(None));
    node.progress.lock().expect("free").extend([200]);
    let (said, result) = fetched(between(FetchFrom::Hub(files())), &node, &other, Some(&hub)).await;
    result.expect("by the other way");
    assert!(said.len() == 1 && said[0].starts_with("ada-2 has something else: "), "{said:?}");
    assert_eq!(asked(&other).len(), 1, "it is not asked to send it again");
    // One that lost the files, and one that is away.
    for (error, why) in [(refused("it is not complete"), "it is not complete"), (lost(), "the cable is out")] {
        let (node, other) = (taker(Vec::new()), sender(Some(error)));
        let (said, result) = fetched(between(FetchFrom::Hub(files())), &node, &other, None).await;
        result.expect("by the other way");
        assert!(
            said.len() == 1 && said[0].starts_with("ada-2 does not send them: ") && said[0].contains(why),
            "{said:?}"
        );
    }
    // A full disk is full whichever way the bytes come.
    let full = NodeError::Refused(Refusal::Disk { path: "/w".to_owned(), needed_bytes: 2, free_bytes: 1 });
    let (node, other) = (taker(vec![full]), sender(None));
    let (said, result) = fetched(between(FetchFrom::Hub(files())), &node, &other, None).await;
    assert!(result.is_err() && said.is_empty(), "{said:?}");
}
