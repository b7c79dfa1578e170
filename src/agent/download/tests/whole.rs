//! Sets that arrive, and what lies there afterwards.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::lab::{Lab, content, cutting, three_chunks, with_fault};
use super::server::{Reply, Server, Then};
use crate::agent::download::record::CHUNK;
use crate::agent::store;
use crate::base::Secret;
use crate::inventory::{Refusal, Response};

#[test]
fn a_set_arrives_in_pieces_and_is_not_asked_for_again() {
    let (big, small) = (three_chunks(), content(1000));
    let lab = Lab::new(&[("big.gguf", &big), ("sub/a b.json", &small), ("empty.txt", b"")]);
    let served = (big.clone(), small.clone());
    let server = Server::start(move |asked| match asked.path.as_str() {
        "/o/m/resolve/c0ffee/big.gguf" => Reply::file(asked, &served.0),
        "/o/m/resolve/c0ffee/sub/a%20b.json" => Reply::file(asked, &served.1),
        other => panic!("{other}"),
    });
    let mut told = Vec::new();
    let answer = lab.run_with(&server.endpoint(), &mut |have| {
        told.push(have);
        Ok(())
    });
    let sizes = vec![big.len() as u64, 1000, 0];
    assert_eq!(answer.expect("arrived"), Response::Fetched { complete: false, have_bytes: sizes.clone() });
    assert_eq!((told[0], *told.last().expect("told")), (0, sizes.iter().sum()));
    assert!(told.is_sorted(), "{told:?}");
    assert!(
        fs::read(lab.path("big.gguf")).expect("there") == big
            && fs::read(lab.path("sub/a b.json")).expect("there") == small
    );
    assert_eq!(lab.left(), [".flock-received.json", "big.gguf", "empty.txt", "sub"]);
    let asked = server.asked();
    assert_eq!((asked.len(), server.sent()), (4, sizes.iter().sum()));
    assert!(asked.iter().all(|asked| asked.login.is_none()));
    assert!(matches!(store::done(&lab.set), Ok(Response::Fetched { complete: true, .. })));
    let again = lab.run(&server.endpoint()).expect("there");
    assert_eq!(again, Response::Fetched { complete: true, have_bytes: sizes });
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn a_server_that_ignores_ranges_sends_one_stream() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let ignoring = |content: Vec<u8>| Server::start(move |_| Reply::new(200, &[], content.clone()));
    let server = ignoring(big.clone());
    lab.arrives(&server.endpoint());
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
    // And where something is there already, with a gap and from another server.
    let lab = Lab::new(&[("big.gguf", &big)]);
    lab.refusal(&cutting(&big).endpoint());
    lab.arrives(&ignoring(big.clone()).endpoint());
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
    // And where that stream breaks off, again and again.
    let lab = Lab::new(&[("big.gguf", &big)]);
    let (content, most) = (big.clone(), Arc::new(AtomicUsize::new(1 << 20)));
    let server = Server::start(move |_| {
        Reply::new(200, &[], content.clone()).cut(most.fetch_add(2 << 20, Ordering::SeqCst), Then::Close)
    });
    lab.arrives(&server.endpoint());
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
}

#[test]
fn the_token_is_for_the_hub_and_the_content_network_is_asked_where_it_was_found() {
    let big = three_chunks();
    let cdn = with_fault(big.clone(), |asked, _| {
        // Its second address is good for as long as it takes, its first for one piece.
        (asked.path.contains("key=0") && asked.number > 0).then(|| Reply::new(403, &[], "expired"))
    });
    let to = cdn.endpoint();
    let given = AtomicUsize::new(0);
    let server = Server::start(move |_| {
        let key = given.fetch_add(1, Ordering::SeqCst).min(4) / 4;
        Reply::new(302, &[("Location", &format!("{to}/blob?key={key}"))], "Found")
    });
    let mut lab = Lab::new(&[("big.gguf", &big)]);
    lab.token = Some(Secret::new("hf_secret".into()));
    lab.arrives(&server.endpoint());
    assert!(server.asked().iter().all(|asked| asked.login.as_deref() == Some("Bearer hf_secret")));
    assert!(cdn.asked().iter().all(|asked| asked.login.is_none()), "the token went to the content network");
    // Nor is it sent where the hub has another port, or sends us back to itself by another name.
    let (there, back) = (server.asked().len(), cdn.asked().len());
    assert!(there <= 8 && back <= 12, "{there} and {back} requests for three pieces");
}

#[test]
fn an_address_of_the_content_network_serves_many_pieces() {
    let big = content(9 * CHUNK as usize);
    let cdn = with_fault(big.clone(), |_, _| None);
    let to = format!("{}/blob", cdn.endpoint());
    let server = Server::start(move |_| Reply::new(307, &[("Location", &to)], ""));
    let lab = Lab::new(&[("big.gguf", &big)]);
    lab.arrives(&server.endpoint());
    assert!(server.asked().len() <= 4, "{} redirects for nine pieces", server.asked().len());
    assert_eq!(cdn.sent(), big.len() as u64);
}

#[test]
fn what_does_not_fit_is_refused_before_a_byte() {
    let mut lab = Lab::new(&[("big.gguf", b"abc"), ("b.gguf", b"abcd")]);
    for file in &mut lab.set.files {
        file.size_bytes = 1 << 50;
    }
    let server = Server::start(|_| Reply::new(500, &[], ""));
    let Refusal::Disk { needed_bytes, free_bytes, .. } = lab.refusal(&server.endpoint()) else { panic!("it began") };
    assert!(needed_bytes == 1 << 51 && free_bytes < needed_bytes);
    assert!(server.asked().is_empty() && lab.left().is_empty());
    // Nor does it write outside its folder, or take what nobody can check.
    let lab = |name: &str, sha256: Option<String>| {
        let mut lab = Lab::new(&[(name, b"abc")]);
        lab.set.files[0].sha256 = sha256;
        lab.refusal(&server.endpoint()).to_string()
    };
    assert!(lab("../escape", None).contains("leaves its folder") && lab("a", None).contains("without a digest"));
    assert!(server.asked().is_empty());
}

#[test]
fn the_rate_is_kept() {
    let file = content(1 << 20);
    let mut lab = Lab::new(&[("a.gguf", &file)]);
    lab.limit = Some(1 << 20);
    let server = with_fault(file, |_, _| None);
    let began = Instant::now();
    lab.arrives(&server.endpoint());
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?} for a second's bytes", began.elapsed());
}
