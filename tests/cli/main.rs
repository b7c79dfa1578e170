//! Proves the command-line contract where no node is needed: exit codes, JSON shapes, bad input of every
//! kind, and planning from a recorded inventory.
#![allow(clippy::disallowed_methods, reason = "tests read files, start processes and wait")]
#![allow(clippy::print_stderr, reason = "tests say what they wait for")]

#[path = "../support/headers.rs"]
mod headers;
#[path = "../support/published.rs"]
mod published;
#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod facts;
mod inventory;
mod lab;
mod language;
mod lock;
mod mistakes;
mod placement;
mod sizes;
mod usage;
mod what_if;

/// A config repository that is valid and small: one node, one engine, one model whose weights are elsewhere.
pub const SMALL: &str = r#"
cluster "lab"
node "one" address="10.0.0.1"
engine "llama.cpp" { path "/opt/llama.cpp/llama-server" }
model "m" {
    source "on-node:/data/m.gguf"
    engine "llama.cpp"
}
"#;
