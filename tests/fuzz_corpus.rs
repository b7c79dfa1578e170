//! Every reader of what comes from outside against its corpus, everything that ever broke one, and a bounded number
//! of mutations from a fixed seed. `scripts/fuzz` searches on, guided by coverage.
#![cfg(feature = "agent")]
#![allow(clippy::disallowed_methods, reason = "this test reads its corpora and keeps to a time")]

#[path = "fuzz/targets.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use targets::{NEXT, TARGETS};

/// Mutations of one target; a slow target stops earlier.
const MUTATIONS: u64 = 3_000;
const AT_MOST: Duration = Duration::from_secs(4);
/// How long one input may take in a debug build on a busy machine: what exceeds it grows out of proportion.
const PATIENCE: Duration = Duration::from_secs(20);

fn inputs(kind: &str, target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(kind).join(target);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("listed").path()).collect();
    paths.sort();
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    paths.iter().map(|path| (path.display().to_string(), read(path))).collect()
}

fn feed(target: fn(&[u8]), what: &str, input: &[u8]) {
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(outcome.is_ok(), "{what}: the message above, from {:?}", String::from_utf8_lossy(input));
    assert!(started.elapsed() < PATIENCE, "{what} took {:?}: {:?}", started.elapsed(), String::from_utf8_lossy(input));
}

/// xorshift64*: the same mutations everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).expect("below a usize")
    }
}

/// Bytes that mean something to one of the readers.
const SIGNS: &[&[u8]] = &[
    b"{",
    b"}",
    b"\"",
    b"\\",
    b"/*",
    b"\n",
    b"\r\n",
    b"[",
    b"]",
    b":",
    b",",
    b"\xff\xff\xff\xff",
    b"\0",
    b"\xef\xbb\xbf",
    b"18446744073709551615",
    b"-1",
    b"1e999",
    b"null",
    b"\\u001b",
    b"\xc2\x9b",
    b"..",
    b"#true",
    b"/-",
    b"*",
    b"|1|",
    b"`",
    b"\\\n",
    b";",
    b"//",
    b"\xe2\x80\xae",
    b"::error::",
    &[NEXT],
];

fn mutate(seeds: &[(String, Vec<u8>)], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = seeds[chance.below(seeds.len())].1.clone();
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len() + 1);
        let end = (at + 1 + chance.below(16)).min(bytes.len());
        match chance.below(6) {
            0 if at < bytes.len() => bytes[at] = chance.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            2 => drop(bytes.drain(at..end.max(at))),
            3 => {
                let other = &seeds[chance.below(seeds.len())].1;
                let from = chance.below(other.len());
                let to = (from + 1 + chance.below(64)).min(other.len());
                bytes.splice(at..at, other[from..to].to_vec());
            }
            4 => {
                let copy = bytes[at..end.max(at)].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => drop(bytes.splice(at..at, SIGNS[chance.below(SIGNS.len())].iter().copied())),
        }
    }
    bytes
}

fn run(name: &str) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let (corpus, findings) = (inputs("corpus", name), inputs("findings", name));
    assert!(!corpus.is_empty(), "no corpus of {name}");
    let size: usize = corpus.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(size <= 64 << 10, "the corpus of {name} has {size} bytes; keep it small");
    for (what, input) in corpus.iter().chain(&findings) {
        feed(*target, what, input);
    }
    let seeds: Vec<_> = corpus.into_iter().chain(findings).collect();
    let mut chance = Chance(0x00f1_0c4b_16b0_0b5e);
    let started = Instant::now();
    for number in 0..MUTATIONS {
        if started.elapsed() > AT_MOST {
            break;
        }
        feed(*target, &format!("mutation {number} of {name}"), &mutate(&seeds, &mut chance));
    }
}

#[test]
fn configs() {
    run("kdl");
}

#[test]
fn gguf_headers() {
    run("gguf");
}

#[test]
fn safetensors_headers() {
    run("safetensors");
}

#[test]
fn requests_to_the_agent() {
    run("agent");
}

#[test]
fn answers_of_an_agent() {
    run("controller");
}

#[test]
fn inventories() {
    run("inventory");
}

#[test]
fn locks() {
    run("lock");
}

#[test]
fn plan_files() {
    run("plan");
}

#[test]
fn known_hosts() {
    run("known_hosts");
}

#[test]
fn formatted_configs() {
    run("format");
}

#[test]
fn ssh_configs() {
    run("ssh_config");
}

#[test]
fn renderings_of_findings() {
    run("findings");
}

#[test]
fn logs_of_engines() {
    run("engine_log");
}

#[test]
fn every_target_has_its_test_and_its_place_in_the_script() {
    let own = include_str!("fuzz_corpus.rs");
    let script = include_str!("../scripts/fuzz");
    let listed = script.lines().find_map(|line| line.strip_prefix("targets=(")?.strip_suffix(')')).expect("the list");
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed.split(' ').collect::<Vec<_>>(), names);
    for name in names {
        assert!(own.contains(&format!("run(\"{name}\")")), "{name}");
    }
}
