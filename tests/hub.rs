//! The hub as flock asks it, over real sockets, against a stand-in that behaves like the real one
//! (`tests/support/hub.py`): what it answers, what it refuses, and what happens when it breaks.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr, reason = "tests read files and speak")]

#[path = "hub/mod.rs"]
mod checks;
mod support;
