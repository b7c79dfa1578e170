//! Two ends in one process: what arrives, what is kept of what was cut, and who is turned away.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;

use super::message::Wanted;
use super::*;
use crate::agent::error::AgentError;
use crate::agent::store;
use crate::base::{Digest, Secret};
use crate::inventory::{FetchFile, FetchSpec, Refusal, Response};

const REACHED: &str = "127.0.0.1 50022 127.0.0.1 22";

fn key(hex: &str) -> Secret<String> {
    Secret::new(hex.repeat(32))
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

fn set(root: &Path, contents: &[(&str, &[u8])]) -> FetchSpec {
    let file = |(name, content): &(&str, &[u8])| FetchFile {
        name: (*name).to_owned(),
        size_bytes: content.len() as u64,
        sha256: Some(Digest::of(content).to_string()),
    };
    FetchSpec {
        source: "path:m".into(),
        revision: "sha256:0001".into(),
        folder: root.join("0000000000000001").display().to_string(),
        files: contents.iter().map(file).collect(),
    }
}

/// A complete set on the disk.
fn complete(root: &Path, contents: &[(&str, &[u8])]) -> FetchSpec {
    let set = set(root, contents);
    for (name, content) in contents {
        let path = Path::new(&set.folder).join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, content).expect("written");
    }
    store::state(&set).expect("read");
    store::done(&set).expect("whole");
    set
}

fn listening(fetch: &FetchSpec, hex: &str) -> u16 {
    match offer(fetch, &key(hex), 20_000, REACHED).expect("offered") {
        Response::Listening { port, addresses } => {
            assert_eq!(addresses, ["127.0.0.1"]);
            port
        }
        other => panic!("{other:?}"),
    }
}

fn taken(fetch: &FetchSpec, port: u16, hex: &str) -> (Result<Response, AgentError>, Vec<u64>) {
    let (addresses, key, mut told) = (["127.0.0.1".to_owned()], key(hex), Vec::new());
    let from = Taking { addresses: &addresses, port, key: &key, limit_bytes_per_s: None };
    let result = take(fetch, &from, &mut |bytes| {
        told.push(bytes);
        Ok(())
    });
    (result, told)
}

fn refusal(result: Result<Response, AgentError>) -> Refusal {
    match result {
        Err(AgentError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_goes_from_one_store_to_another_once_for_each_key() {
    let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (big, small) = (content(3_000_001, 0), content(70_000, 7));
    let contents: [(&str, &[u8]); 3] = [("sub/big.gguf", &big), ("config.json", &small), ("empty", b"")];
    let offered = complete(from.path(), &contents);
    let wanted = set(to.path(), &contents);
    let port = listening(&offered, "1a");
    // Others learn nothing and end nothing.
    assert!(matches!(refusal(taken(&wanted, port, "2b").0), Refusal::Unreached { text } if text.contains("127.0.0.1")));
    let mut noise = TcpStream::connect(("127.0.0.1", port)).expect("open");
    noise.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    drop(noise);
    let (result, told) = taken(&wanted, port, "1a");
    let have = vec![3_000_001, 70_000, 0];
    assert_eq!(result.expect("taken"), Response::Fetched { complete: false, have_bytes: have.clone() });
    assert_eq!(told.first(), Some(&0));
    assert_eq!(store::done(&wanted).expect("whole"), Response::Fetched { complete: true, have_bytes: have });
    assert_eq!(fs::read(Path::new(&wanted.folder).join("sub/big.gguf")).expect("there"), big);
    // What is there needs nobody, and the key opens nothing a second time.
    assert!(taken(&wanted, 1, "1a").0.is_ok());
    let again = set(&to.path().join("again"), &contents);
    assert!(matches!(refusal(taken(&again, port, "1a").0), Refusal::Unreached { .. }));
}

/// Stands between the two ends, lets so many bytes of the offering one through, and changes one of them.
fn between(port: u16, most: usize, change: Option<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut server = TcpStream::connect(("127.0.0.1", port)).expect("the offering end");
        let (mut up, mut down) = (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
        std::thread::spawn(move || drop(std::io::copy(&mut up, &mut down)));
        let (mut buffer, mut passed) = ([0_u8; 4096], 0);
        while passed < most {
            let Ok(read) = server.read(&mut buffer) else { break };
            if read == 0 {
                break;
            }
            if let Some(at) = change.filter(|at| (passed..passed + read).contains(at)) {
                buffer[at - passed] ^= 1;
            }
            passed += read;
            if client.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    own
}

#[test]
fn what_arrived_before_a_cut_is_kept_and_altered_bytes_are_not() {
    let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let big = content(5_000_000, 3);
    let contents: [(&str, &[u8]); 1] = [("big.gguf", &big)];
    let offered = complete(from.path(), &contents);
    let wanted = set(to.path(), &contents);
    let cut = between(listening(&offered, "1c"), 2_000_000, None);
    let refused = refusal(taken(&wanted, cut, "1c").0);
    assert!(
        matches!(&refused, Refusal::Unreached { text } if text.contains("lost while it sent big.gguf")),
        "{refused}"
    );
    let Response::Fetched { have_bytes, .. } = store::state(&wanted).expect("asked") else { panic!("another answer") };
    let kept = have_bytes[0];
    assert!(kept > 1_800_000 && kept < 2_000_000, "{kept}");
    // A byte that was changed on the way: nothing after it is taken, and nothing of it is.
    let altered = between(listening(&offered, "2c"), usize::MAX, Some(1_000_000));
    let refused = refusal(taken(&wanted, altered, "2c").0);
    assert!(matches!(&refused, Refusal::Unreached { text } if text.contains("does not open")), "{refused}");
    let part = store::part(Path::new(&wanted.folder), "big.gguf");
    let length = fs::metadata(&part).expect("there").len();
    assert!(length > kept + 800_000 && length < kept + 1_000_000, "{length}");
    assert_eq!(fs::read(&part).expect("there"), big[..usize::try_from(length).expect("short")]);
    // The rest, and no more than the rest.
    let (result, told) = taken(&wanted, listening(&offered, "3c"), "3c");
    assert_eq!(result.expect("taken"), Response::Fetched { complete: false, have_bytes: vec![5_000_000] });
    assert_eq!(told.first(), Some(&0));
    assert!(fs::read(Path::new(&wanted.folder).join("big.gguf")).expect("there") == big);
}

#[test]
fn a_file_that_is_another_than_it_should_be_is_not_accepted() {
    let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (right, wrong) = (content(200_000, 1), content(200_000, 2));
    let offered = complete(from.path(), &[("m.gguf", &wrong)]);
    // The revision is the same, the bytes are not: a node that is not what it seems.
    let wanted = set(to.path(), &[("m.gguf", &right)]);
    let refused = refusal(taken(&wanted, listening(&offered, "1d"), "1d").0);
    assert!(matches!(refused, Refusal::Digest { .. }), "{refused}");
    assert_eq!(store::state(&wanted).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
    // A file that is not of the set, whatever its name.
    fs::write(from.path().join("secret"), "x").expect("written");
    for name in ["other.gguf", "a/../../secret"] {
        let mut more = set(to.path(), &[("m.gguf", &right)]);
        name.clone_into(&mut more.files[0].name);
        let result = taken(&more, listening(&offered, "2d"), "2d").0;
        assert!(result.is_err(), "{name}");
    }
    let listed = Wanted { name: "../secret".into(), offset: 0 };
    assert_eq!(
        offer::open(Path::new(&offered.folder), &offered.files, &listed).err().as_deref(),
        Some("is no file of the set")
    );
    // What is not complete is not offered.
    let error = offer(&wanted, &key("3d"), 1_000, REACHED).expect_err("not complete");
    assert!(matches!(error, AgentError::Refused(Refusal::Unknown { .. })), "{error}");
    // Nor where nobody could come.
    let error = offer(&offered, &key("3d"), 1_000, "").expect_err("no address");
    assert!(matches!(error, AgentError::Refused(Refusal::Unreached { .. })), "{error}");
}

#[test]
fn a_limit_is_kept_to_and_who_is_told_can_end_it() {
    let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let big = content(600_000, 4);
    let offered = complete(from.path(), &[("m.gguf", &big)]);
    let wanted = set(to.path(), &[("m.gguf", &big)]);
    let (addresses, key_of) = (["127.0.0.1".to_owned()], key("1e"));
    let mut from_there = Taking {
        addresses: &addresses,
        port: listening(&offered, "1e"),
        key: &key_of,
        limit_bytes_per_s: Some(100_000),
    };
    let began = std::time::Instant::now();
    let gone = || AgentError::Stream { action: "writing", source: std::io::ErrorKind::BrokenPipe.into() };
    let ended = take(&wanted, &from_there, &mut |bytes| if bytes > 0 { Err(gone()) } else { Ok(()) });
    assert!(matches!(ended, Err(AgentError::Stream { .. })), "{ended:?}");
    // A second's worth at most, and the end of it.
    let Response::Fetched { have_bytes, .. } = store::state(&wanted).expect("asked") else { panic!("another answer") };
    assert!(have_bytes[0] > 0 && have_bytes[0] < 600_000, "{have_bytes:?} after {:?}", began.elapsed());
    let key_of = key("2e");
    (from_there.port, from_there.key, from_there.limit_bytes_per_s) =
        (listening(&offered, "2e"), &key_of, Some(400_000));
    let (began, left) = (std::time::Instant::now(), 600_000 - have_bytes[0]);
    take(&wanted, &from_there, &mut |_| Ok(())).expect("taken");
    let least = std::time::Duration::from_secs_f64(left as f64 / 400_000.0 * 0.9);
    assert!(began.elapsed() >= least, "{:?} for {left} bytes", began.elapsed());
}
