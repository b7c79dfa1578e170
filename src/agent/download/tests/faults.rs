//! Servers that misbehave, and how long that is borne.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::lab::{Lab, three_chunks, with_fault};
use super::server::{Asked, Reply, Server, Then};
use crate::agent::download::pace::Patience;
use crate::agent::download::record::CHUNK;
use crate::base::{Digest, Secret};
use crate::inventory::Refusal;

#[test]
fn a_wrong_digest_is_tried_once_more_from_the_begin_and_then_refused() {
    let big = three_chunks();
    let mut broken = big.clone();
    broken[1_000_000] ^= 1;
    let lab = Lab::new(&[("big.gguf", &big)]);
    let (first, second) = (broken.clone(), big.clone());
    let server = Server::start(move |asked| Reply::file(asked, if asked.number < 3 { &first } else { &second }));
    lab.arrives(&server.endpoint());
    assert_eq!(server.sent(), 2 * big.len() as u64);
    let lab = Lab::new(&[("big.gguf", &big)]);
    let server = with_fault(broken, |_, _| None);
    let Refusal::Digest { file, expected, found } = lab.refusal(&server.endpoint()) else { panic!("taken") };
    assert!(file == "big.gguf" && expected == Digest::of(&big).to_string() && found != expected);
    assert_eq!((lab.left(), server.sent()), (vec![], 2 * big.len() as u64));
}

#[test]
fn another_digest_in_the_hubs_own_words_is_refused_before_a_byte() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let etag = format!("\"{}\"", Digest::of(b"another").hex());
    let server = Server::start(move |_| Reply::new(302, &[("X-Linked-Etag", &etag), ("Location", "/elsewhere")], ""));
    assert!(matches!(lab.refusal(&server.endpoint()), Refusal::Digest { .. }));
    assert!(server.asked().iter().all(|asked| asked.path.contains("resolve")));
}

#[test]
fn too_many_requests_and_a_failing_server_are_waited_out() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let server = with_fault(big.clone(), |asked, _| match asked.number {
        0..2 => Some(Reply::new(429, &[("Retry-After", "1")], "slow down")),
        2..9 => Some(Reply::new([500, 502, 503, 504][asked.number % 4], &[], "oh")),
        _ => None,
    });
    let began = Instant::now();
    lab.arrives(&server.endpoint());
    assert!(began.elapsed() >= Duration::from_secs(1), "it was asked to wait for a second");
    // Not for ever: neither where nothing else comes, nor where more is asked than anybody waits.
    let lab =
        Lab { patience: Patience { nothing: Duration::from_secs(1), ..lab.patience }, ..Lab::new(&[("a", &big)]) };
    let server = Server::start(|_| Reply::new(503, &[], ""));
    let Refusal::Hub { status, text, hint } = lab.refusal(&server.endpoint()) else { panic!("no refusal of the hub") };
    assert!(status == Some(503) && text.contains("nothing came from http://127.0.0.1") && hint.contains("HTTPS_PROXY"));
    let lab = Lab::new(&[("a", &big)]);
    let server = Server::start(|_| Reply::new(429, &[("Retry-After", "86400")], ""));
    let Refusal::Hub { status, hint, .. } = lab.refusal(&server.endpoint()) else { panic!("no refusal of the hub") };
    assert!(status == Some(429) && hint.contains("86400 s"), "{hint}");
    assert!(server.asked().len() <= 4);
}

#[test]
fn silence_and_a_trickle_are_dropped_and_asked_again() {
    let big = three_chunks();
    for then in [Then::Silence, Then::Trickle] {
        let lab = Lab::new(&[("big.gguf", &big)]);
        let lab = Lab { patience: Patience { stall: Duration::from_secs(2), ..lab.patience }, ..lab };
        let server = with_fault(big.clone(), move |asked, content| {
            let reply = Reply::file(asked, content);
            (asked.number < 3 && reply.body.len() > 2_000_000).then(|| reply.cut(2_000_000, then))
        });
        lab.arrives(&server.endpoint());
        assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
        assert_eq!(server.asked().len(), 5, "{then:?}");
    }
}

#[test]
fn a_circle_and_a_way_down_end() {
    let lab = Lab::new(&[("big.gguf", b"abc")]);
    for location in ["/o/m/resolve/c0ffee/big.gguf", "?again", "/x/", "ftp://elsewhere/", "http://[", ""] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let server = Server::start(move |_| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let location = if location == "?again" { format!("/again?{number}") } else { location.to_owned() };
            Reply::new(302, &[("Location", &location)], "")
        });
        let Refusal::Hub { status, text, .. } = lab.refusal(&server.endpoint()) else { panic!("{location}") };
        assert!(status == Some(302) && (text.contains("circle") || text.contains("sends us to")), "{text}");
        assert!(count.load(Ordering::SeqCst) <= 48, "{location}");
    }
    assert_eq!(
        lab.left(),
        ["big.gguf.part", ".big.gguf.chunks"].map(str::to_owned).into_iter().rev().collect::<Vec<_>>()
    );
}

#[test]
fn refusals_are_final() {
    let lab = Lab::new(&[("big.gguf", b"abc")]);
    for (status, code) in [(401, ""), (403, "GatedRepo"), (404, "EntryNotFound"), (404, "RepoNotFound"), (451, "")] {
        let server = Server::start(move |_| Reply::new(status, &[("X-Error-Code", code)], "no"));
        let Refusal::Hub { status: found, hint, .. } = lab.refusal(&server.endpoint()) else { panic!("{status}") };
        assert!(found == Some(status) && !hint.is_empty());
        assert_eq!(server.asked().len(), 1, "{status} was asked again");
    }
}

#[test]
fn a_token_that_a_server_says_back_is_in_no_message() {
    let mut lab = Lab::new(&[("big.gguf", b"abc")]);
    lab.token = Some(Secret::new("hf_secret".into()));
    // In a message so long that it is cut, within the token too.
    let long = format!("{}hf_secret", "x".repeat(445));
    type Case<'a> = (u16, &'a str, &'a str);
    let cases: [Case<'_>; 5] = [
        (418, "X-Error-Message", "no token hf_secret here"),
        (403, "X-Error-Message", &long),
        (206, "Content-Range", "bytes hf_secret"),
        (200, "Content-Encoding", "hf_secret"),
        (302, "Location", "ftp://hf_secret"),
    ];
    for (status, name, value) in cases {
        let (name, value) = (name.to_owned(), value.to_owned());
        let server = Server::start(move |_| Reply::new(status, &[(&name, &value)], "abc"));
        let refusal = format!("{:?}", lab.refusal(&server.endpoint()));
        assert!(!refusal.contains("hf_"), "{refusal}");
    }
}

#[test]
fn answers_that_no_hub_gives_are_asked_again_a_few_times_only() {
    let big = three_chunks();
    type Fault = fn(&Asked, &[u8]) -> Option<Reply>;
    let faults: [(&str, Fault); 8] = [
        ("a web page of 17 bytes", |_, _| {
            Some(Reply::new(200, &[("Content-Type", "text/html")], b"<html>login</html"))
        }),
        ("when asked for", |asked, content| {
            let reply = Reply::file(asked, content);
            (asked.range.as_ref()?.start > 0).then(|| {
                Reply::new(206, &[("Content-Range", &format!("bytes 0-9/{}", content.len()))], &reply.body[..10])
            })
        }),
        ("announces 9 bytes for the", |asked, content| {
            let range = asked.range.clone()?;
            let (from, to) = (range.start as usize, (range.end as usize).min(content.len()));
            let said = format!("bytes {from}-{}/{}", to - 1, content.len());
            Some(Reply::new(206, &[("Content-Range", &said)], &content[from..from + 9]))
        }),
        ("another size", |_, content| {
            Some(Reply::new(
                206,
                &[("Content-Range", &format!("bytes 0-{}/999", CHUNK - 1))],
                &content[..CHUNK as usize],
            ))
        }),
        ("where it is", |asked, content| Some(Reply { headers: vec![], ..Reply::file(asked, content) })),
        ("shorter there (416)", |_, _| Some(Reply::new(416, &[("Content-Range", "bytes */5")], ""))),
        ("packed as \"gzip\"", |asked, content| {
            let mut reply = Reply::file(asked, content);
            reply.headers.push(("Content-Encoding".into(), "gzip".into()));
            Some(reply)
        }),
        ("answers 204", |_, _| Some(Reply { length: None, ..Reply::new(204, &[], "") })),
    ];
    for (words, fault) in faults {
        let lab = Lab::new(&[("big.gguf", &big)]);
        let server = with_fault(big.clone(), fault);
        let refusal = lab.refusal(&server.endpoint());
        assert!(matches!(&refusal, Refusal::Hub { text, .. } if text.contains(words)), "{words}: {refusal:?}");
        assert!(server.asked().len() <= 40, "{words}: {} times", server.asked().len());
        // One such answer alone does no harm.
        let lab = Lab::new(&[("big.gguf", &big)]);
        let server =
            with_fault(big.clone(), move |asked, content| (asked.number < 2).then(|| fault(asked, content)).flatten());
        lab.arrives(&server.endpoint());
        assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
    }
}

#[test]
fn bytes_beyond_the_end_are_not_taken() {
    let big = three_chunks();
    let lab = Lab::new(&[("big.gguf", &big)]);
    let server = with_fault(big.clone(), |asked, content| {
        let mut reply = Reply::file(asked, content);
        reply.body.extend(b"and more");
        Some(Reply { length: None, ..reply })
    });
    // The pieces were there for all that.
    lab.arrives(&server.endpoint());
    assert!(fs::read(lab.path("big.gguf")).expect("there") == big);
}

#[test]
fn a_hub_that_nobody_reaches_is_said_soon() {
    let lab = Lab::new(&[("big.gguf", b"abc")]);
    let lab = Lab { patience: Patience { first: Duration::from_millis(500), ..lab.patience }, ..lab };
    // A port that no test is given: one that was free a moment ago may be another test's by now.
    let closed = "127.0.0.1:1";
    let Refusal::Hub { status, text, hint } = lab.refusal(&format!("http://{closed}")) else { panic!("no refusal") };
    assert!(status.is_none() && text.contains(closed) && text.contains("refused"), "{text}");
    assert!(hint.contains("check that the node reaches"), "{hint}");
    for bad in ["ftp://hub", "hub.example", "https://me:pw@hub.example", "http://x\r\nHost: y"] {
        let refusal = lab.refusal(bad);
        assert!(matches!(&refusal, Refusal::Hub { text, .. } if !text.contains(char::is_control)), "{refusal:?}");
    }
    let lab = Lab { token: Some(Secret::new("hf_\nsecret".into())), ..lab };
    let refusal = lab.refusal("http://127.0.0.1:1").to_string();
    assert!(refusal.contains("token") && !refusal.contains("secret"), "{refusal}");
}
