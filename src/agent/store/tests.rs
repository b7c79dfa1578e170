//! What arrives, what is there, and what is not taken for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

use super::receive::resume;
use super::records::{COMPLETE, Checked, Complete, RECEIVED, Received, checked, modified, note};
use super::*;
use crate::agent::error::AgentError;
use crate::agent::files::{read_json, write_json};
use crate::base::Digest;
use crate::inventory::raw_frame;
use crate::inventory::{FetchFile, FetchSpec, Refusal, Response, WeightsRef};

pub const CONTENT: &[u8] = b"sixteen bytes...";

#[test]
fn what_several_note_at_once_is_all_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<String> = (0..16).map(|number| format!("part-{number}.gguf")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            let folder = &folder;
            scope.spawn(move || {
                let path = folder.path().join(name);
                fs::write(&path, CONTENT).expect("written");
                let checked = Checked { sha256: Digest::of(CONTENT).to_string(), modified_ns: modified(&path) };
                note(folder.path(), Received::from([(name.clone(), checked)])).expect("noted");
            });
        }
    });
    assert_eq!(checked(folder.path()).into_keys().collect::<BTreeSet<_>>(), names.iter().cloned().collect());
    // A digest of something that was written to since says nothing.
    let stale = Checked { sha256: "sha256:00".into(), modified_ns: Some(1) };
    note(folder.path(), Received::from([(names[0].clone(), stale)])).expect("noted");
    assert_eq!(checked(folder.path())[&names[0]].sha256, Digest::of(CONTENT).to_string());
    // A set that is done takes only its own away.
    let mut set = spec(folder.path(), CONTENT.len() as u64);
    set.folder = folder.path().display().to_string();
    set.files[0].name.clone_from(&names[3]);
    done(&set).expect("whole");
    let left: Received = read_json(&folder.path().join(RECEIVED)).expect("read").expect("there");
    assert!(left.len() == 15 && !left.contains_key(&names[3]), "{left:?}");
}

#[test]
fn a_partial_that_is_a_link_is_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (victim, part) = (folder.path().join("victim"), folder.path().join("a.part"));
    fs::write(&victim, "precious").expect("written");
    std::os::unix::fs::symlink(&victim, &part).expect("linked");
    assert!(resume(&part, 0).is_err());
    assert_eq!(fs::read(&victim).expect("there"), b"precious");
}

#[test]
fn a_marker_with_impossible_sizes_is_told_all_the_same() {
    let top = tempfile::tempdir().expect("a folder");
    let mut set = spec(top.path(), u64::MAX);
    set.files.push(FetchFile { name: "b".into(), ..set.files[0].clone() });
    let marker = Complete { format: 1, fetch: set.clone(), modified_ns: BTreeMap::new() };
    write_json(&Path::new(&set.folder).join(COMPLETE), &marker).expect("written");
    assert_eq!(found(top.path())[0].size_bytes, u64::MAX);
}

fn spec(folder: &Path, size_bytes: u64) -> FetchSpec {
    FetchSpec {
        source: "path:models/tiny.gguf".into(),
        revision: "sha256:00".into(),
        folder: folder.join("0000").display().to_string(),
        files: vec![FetchFile {
            name: "sub/tiny.gguf".into(),
            size_bytes,
            sha256: Some(Digest::of(CONTENT).to_string()),
        }],
    }
}

fn stream(pieces: &[&[u8]]) -> Vec<u8> {
    pieces.iter().copied().chain([&b""[..]]).flat_map(raw_frame).collect()
}

#[test]
fn a_cut_transfer_resumes_where_it_ended() {
    let root = tempfile::tempdir().expect("a folder");
    let fetch = spec(root.path(), 16);
    let cut = raw_frame(&CONTENT[..7]);
    let lost = put(&fetch, "sub/tiny.gguf", 0, &mut cut.as_slice());
    assert!(matches!(lost, Err(AgentError::Stream { .. })));
    let after = state(&fetch).expect("asked");
    assert_eq!(after, Response::Fetched { complete: false, have_bytes: vec![7] });
    assert!(done(&fetch).is_err());
    let rest = stream(&[&CONTENT[7..9], &CONTENT[9..]]);
    let mut input = rest.as_slice();
    let answer = put(&fetch, "sub/tiny.gguf", 7, &mut input).expect("received");
    assert_eq!(answer, Response::Fetched { complete: false, have_bytes: vec![16] });
    assert!(input.is_empty());
    assert_eq!(done(&fetch).expect("marked"), Response::Fetched { complete: true, have_bytes: vec![16] });
    assert_eq!(found(root.path())[0].files, ["sub/tiny.gguf"]);
    let folder = fetch.folder.clone();
    let set = WeightsRef { revision: Some(fetch.revision), folder, files: vec!["sub/tiny.gguf".into()] };
    assert_eq!(missing(std::slice::from_ref(&set)), None);
    fs::write(Path::new(&set.folder).join("sub/tiny.gguf"), b"short").expect("damaged");
    assert!(missing(&[set]).is_some());
    assert!(!found(root.path())[0].complete);
}

#[test]
fn a_wrong_digest_leaves_nothing_and_the_stream_stays_in_step() {
    let root = tempfile::tempdir().expect("a folder");
    let fetch = spec(root.path(), 16);
    let wrong = stream(&[b"SIXTEEN BYTES..."]);
    let mut input = wrong.as_slice();
    let refused = put(&fetch, "sub/tiny.gguf", 0, &mut input);
    assert!(matches!(refused, Err(AgentError::Refused(Refusal::Digest { .. }))), "{refused:?}");
    assert!(input.is_empty());
    assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
}

#[test]
fn a_file_of_the_right_size_is_not_taken_for_the_right_one() {
    let root = tempfile::tempdir().expect("a folder");
    let fetch = spec(root.path(), 16);
    let whole = Path::new(&fetch.folder).join("sub/tiny.gguf");
    fs::create_dir_all(whole.parent().expect("a parent")).expect("made");
    fs::write(&whole, b"SIXTEEN BYTES...").expect("written");
    assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
    assert!(done(&fetch).is_err());
    put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
    done(&fetch).expect("marked");
    assert_eq!(fs::read(&whole).expect("read"), CONTENT);
    // Once complete, nothing is sent again, and the marker alone remembers.
    assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: true, have_bytes: vec![16] });
    assert!(!Path::new(&fetch.folder).join(RECEIVED).exists());
}

#[test]
fn what_was_written_to_since_is_read_again() {
    let root = tempfile::tempdir().expect("a folder");
    let fetch = spec(root.path(), 16);
    let set = [WeightsRef {
        revision: Some(fetch.revision.clone()),
        folder: fetch.folder.clone(),
        files: vec!["sub/tiny.gguf".into()],
    }];
    let whole = Path::new(&fetch.folder).join("sub/tiny.gguf");
    let write_to = |content: &[u8], seconds| {
        fs::write(&whole, content).expect("written");
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        File::options().write(true).open(&whole).and_then(|file| file.set_modified(time)).expect("a time of its own");
    };
    put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
    done(&fetch).expect("marked");

    write_to(b"SIXTEEN BYTES...", 1_000);
    assert!(missing(&set).is_some_and(|text| text.contains("changed since")), "{:?}", missing(&set));
    assert!(!found(root.path())[0].complete);
    assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![0] });
    assert!(done(&fetch).is_err());
    put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
    done(&fetch).expect("marked");
    assert_eq!((missing(&set), fs::read(&whole).expect("read")), (None, CONTENT.to_vec()));

    // Touched, and the same: nothing is sent again.
    write_to(CONTENT, 2_000);
    assert!(missing(&set).is_some());
    assert_eq!(state(&fetch).expect("asked"), Response::Fetched { complete: false, have_bytes: vec![16] });
    done(&fetch).expect("marked");
    assert_eq!(missing(&set), None);
}

#[test]
fn a_second_transfer_of_a_file_is_told_that_there_is_one() {
    let root = tempfile::tempdir().expect("a folder");
    let fetch = spec(root.path(), 16);
    let path = part(Path::new(&fetch.folder), "sub/tiny.gguf");
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    let (_held, _) = resume(&path, 0).expect("free");
    let refused = put(&fetch, "sub/tiny.gguf", 0, &mut stream(&[CONTENT]).as_slice());
    assert!(matches!(refused, Err(AgentError::Refused(Refusal::Busy { .. }))), "{refused:?}");
}

#[test]
fn what_does_not_fit_or_leaves_its_folder_is_refused_before_it_is_written() {
    let root = tempfile::tempdir().expect("a folder");
    let huge = spec(root.path(), 1 << 60);
    assert!(matches!(state(&huge), Err(AgentError::Refused(Refusal::Disk { .. }))));
    let frames = stream(&[CONTENT]);
    let mut input = frames.as_slice();
    assert!(matches!(put(&huge, "sub/tiny.gguf", 0, &mut input), Err(AgentError::Refused(Refusal::Disk { .. }))));
    assert!(input.is_empty());
    let mut outside = spec(root.path(), 16);
    outside.files[0].name = "../escape".into();
    assert!(put(&outside, "../escape", 0, &mut frames.as_slice()).is_err());
    assert_eq!(fs::read_dir(root.path()).expect("listed").count(), 0);
    let long = stream(&[CONTENT, b"more"]);
    assert!(put(&spec(root.path(), 16), "sub/tiny.gguf", 0, &mut long.as_slice()).is_err());
    assert!(put(&spec(root.path(), 16), "sub/tiny.gguf", 99, &mut frames.as_slice()).is_err());
}

/// A set of one file of [`CONTENT`], of a revision of its own.
pub fn spec_of(root: &Path, name: &str, file: &str) -> FetchSpec {
    let mut set = spec(root, CONTENT.len() as u64);
    set.folder = root.join(name).display().to_string();
    set.revision = format!("sha256:{name}");
    file.clone_into(&mut set.files[0].name);
    set
}

/// Brings it whole.
pub fn bring(set: &FetchSpec) {
    put(set, &set.files[0].name, 0, &mut stream(&[CONTENT]).as_slice()).expect("received");
    done(set).expect("marked");
}

#[test]
fn a_partial_that_became_the_file_meanwhile_is_not_cut() {
    let root = tempfile::tempdir().expect("a folder");
    let set = spec_of(root.path(), "0001", "a.gguf");
    let folder = root.path().join("0001");
    fs::create_dir_all(&folder).expect("made");
    let path = part(&folder, "a.gguf");
    fs::write(&path, CONTENT).expect("written");
    // As after another process has opened it, and before it is locked: the name is another file's by now.
    let held = File::open(&path).expect("opened");
    fs::rename(&path, folder.join("a.gguf")).expect("renamed");
    std::os::unix::fs::symlink("a.gguf", &path).expect("linked");
    assert!(super::receive::Arriving::resume(&folder, &set.files[0], None, &mut |_| ()).is_err());
    fs::remove_file(&path).expect("removed");
    fs::hard_link(folder.join("a.gguf"), &path).expect("linked");
    assert!(super::receive::is_current(&held, &path));
    fs::remove_file(&path).and_then(|()| fs::write(&path, b"new")).expect("another");
    assert!(!super::receive::is_current(&held, &path));
    assert_eq!(fs::read(folder.join("a.gguf")).expect("there"), CONTENT);
}
