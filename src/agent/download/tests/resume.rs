//! What was there before is gone on with: after a cut, an end, another connection, another file of the name.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::lab::{LOST, Lab, content, cutting, three_chunks, with_fault};
use super::server::{Reply, Server, Then};
use crate::agent::download::pace::Patience;
use crate::agent::download::part::Part;
use crate::agent::download::record::{self, CHUNK};
use crate::agent::error::AgentError;
use crate::agent::store;
use crate::base::Digest;
use crate::inventory::{Refusal, Response};

#[test]
fn what_came_before_an_end_is_not_fetched_again() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let cutting = cutting(&big);
    assert!(matches!(lab.refusal(&cutting.endpoint()), Refusal::Hub { status: Some(403), .. }));
    let Response::Fetched { have_bytes, .. } = store::state(&lab.set).expect("asked") else { panic!("no state") };
    assert_eq!(have_bytes, [3_000_000], "without a gap");
    let whole = with_fault(big.clone(), |_, _| None);
    let first = cutting.sent();
    lab.arrives(&whole.endpoint());
    assert!(first + whole.sent() <= big.len() as u64, "{first} and {}", whole.sent());
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
}

#[test]
fn a_controller_that_is_gone_ends_it_and_loses_nothing() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let silent =
        with_fault(big.clone(), |asked, content| Some(Reply::file(asked, content).cut(2_000_000, Then::Silence)));
    let lab = Lab { patience: Patience { stall: Duration::from_secs(60), ..lab.patience }, ..lab };
    let began = Instant::now();
    let ended = lab.run_with(&silent.endpoint(), &mut |have| match have {
        0..3_800_000 => Ok(()),
        _ => Err(AgentError::Stream { action: "writing", source: std::io::ErrorKind::BrokenPipe.into() }),
    });
    assert!(matches!(ended, Err(AgentError::Stream { .. })), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for a silent server");
    let whole = with_fault(big.clone(), |_, _| None);
    lab.arrives(&whole.endpoint());
    assert!(silent.sent() + whole.sent() <= big.len() as u64 + 4 * LOST);
}

#[test]
fn cut_connections_are_gone_on_with() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let server = with_fault(big.clone(), |asked, content| {
        (asked.number % 3 != 2).then(|| Reply::file(asked, content).cut(1_500_000, Then::Close))
    });
    lab.arrives(&server.endpoint());
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
    let cuts = server.asked().len() as u64;
    assert!(server.sent() <= big.len() as u64 + cuts * LOST, "{}", server.sent());
}

#[test]
fn a_partial_that_is_complete_is_checked_and_taken_without_a_request() {
    let big = three_chunks();
    let server = with_fault(big.clone(), |_, _| None);
    let lab = Lab::new(&[("big.gguf", &big)]);
    fs::create_dir_all(&lab.set.folder).expect("made");
    fs::write(lab.part("big.gguf"), &big).expect("written");
    lab.arrives(&server.endpoint());
    assert!(server.asked().is_empty());
    // One that is complete and wrong is fetched from its begin.
    let lab = Lab::new(&[("big.gguf", &big)]);
    fs::create_dir_all(&lab.set.folder).expect("made");
    fs::write(lab.part("big.gguf"), content(big.len() - 3)).expect("written");
    lab.arrives(&server.endpoint());
    assert_eq!(server.sent(), 3 + big.len() as u64);
    // What somebody else received in order is gone on with.
    let lab = Lab::new(&[("big.gguf", &big)]);
    fs::create_dir_all(&lab.set.folder).expect("made");
    fs::write(lab.part("big.gguf"), &big[..9_000_000]).expect("written");
    lab.arrives(&server.endpoint());
    assert_eq!(server.sent(), 3 + 2 * big.len() as u64 - 9_000_000);
}

#[test]
fn what_was_begun_here_can_be_gone_on_with_over_the_agents_stream() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    fs::create_dir_all(&lab.set.folder).expect("made");
    {
        let path = lab.part("big.gguf");
        let (part, _) = Part::open(&path, big.len() as u64, &Digest::of(&big)).expect("opened").expect("free");
        part.write(u64::from(CHUNK), &big[CHUNK as usize..][..5000]).expect("a later chunk");
        part.write(0, &big[..1000]).expect("the first");
    }
    let state = store::state(&lab.set).expect("asked");
    assert_eq!(state, Response::Fetched { complete: false, have_bytes: vec![1000] });
    let pieces = big[1000..].chunks(1 << 20).chain([&b""[..]]);
    let frames: Vec<u8> = pieces.flat_map(crate::inventory::raw_frame).collect();
    store::put(&lab.set, "big.gguf", 1000, &mut frames.as_slice()).expect("received");
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
    assert_eq!(lab.left(), [".flock-received.json", "big.gguf"]);
}

#[test]
fn a_file_that_somebody_else_brings_is_waited_for() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big), ("small.json", b"{}")]);
    fs::create_dir_all(&lab.set.folder).expect("made");
    let served = big.clone();
    let server = Server::start(move |asked| match asked.path.ends_with("small.json") {
        true => Reply::file(asked, b"{}"),
        false => Reply::file(asked, &served),
    });
    let open = || Part::open(&lab.part("big.gguf"), big.len() as u64, &Digest::of(&big)).expect("opened");
    // It finishes the file while we bring the other one.
    let part = open().expect("free");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !lab.path("small.json").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            for (number, piece) in big.chunks(1 << 20).enumerate() {
                part.0.write((number << 20) as u64, piece).expect("written");
            }
            part.0.accept(Path::new(&lab.set.folder), "big.gguf", &Digest::of(&big)).expect("accepted");
            drop(part);
        });
        lab.arrives(&server.endpoint());
    });
    assert_eq!(server.sent(), 2, "it was fetched twice");
    assert_eq!(lab.left(), [".flock-received.json", "big.gguf", "small.json"]);
    // It dies in the middle: its lock is gone with it, and what it had is gone on with.
    fs::remove_file(lab.path("big.gguf")).expect("removed");
    let part = open().expect("free");
    part.0.write(0, &big[..5_000_000]).expect("written");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(part);
        });
        lab.arrives(&server.endpoint());
    });
    assert_eq!(server.sent(), 2 + big.len() as u64 - 5_000_000);
    // It hangs.
    fs::remove_file(lab.path("big.gguf")).expect("removed");
    let _part = open().expect("free");
    let lab = Lab { patience: Patience { first: Duration::from_millis(300), ..lab.patience }, ..lab };
    assert!(matches!(lab.refusal(&server.endpoint()), Refusal::Busy { .. }));
}

#[test]
fn two_at_once_share_the_work() {
    let files: Vec<(String, Vec<u8>)> =
        (0..6).map(|number| (format!("{number}.gguf"), content(400_000 + number))).collect();
    let named: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    let lab = Lab::new(&named);
    let served = files.clone();
    let server = Server::start(move |asked| {
        let name = asked.path.rsplit('/').next().expect("a name");
        Reply::file(asked, &served.iter().find(|(known, _)| known == name).expect("known").1)
    });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| lab.arrives(&server.endpoint()));
        }
    });
    assert_eq!(server.sent(), files.iter().map(|(_, content)| content.len() as u64).sum::<u64>());
    assert_eq!(lab.left().len(), 7, "{:?}", lab.left());
}

#[test]
fn a_record_of_another_file_is_not_believed() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    fs::create_dir_all(&lab.set.folder).expect("made");
    // The same name and size, at another commit.
    let path = lab.part("big.gguf");
    let (part, _) = Part::open(&path, big.len() as u64, &Digest::of(b"other")).expect("opened").expect("free");
    part.write(0, &vec![7; CHUNK as usize]).expect("written");
    drop(part);
    assert!(record::path(&path).exists());
    let server = with_fault(big.clone(), |_, _| None);
    lab.arrives(&server.endpoint());
    assert_eq!(server.sent(), big.len() as u64);
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big && lab.folder.path().exists());
}
