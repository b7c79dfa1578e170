//! Nodes over SSH: one verified connection per node, the agent pushed over SFTP where it is missing.
//!
//! In: an [`SshTarget`]. Out: a `ports::Transport`. Nothing here asks a person anything: an unknown host key or a
//! missing key is a typed error with its remedy. May import: base, inventory, ports; russh appears only here.

mod auth;
mod connection;
mod hashed;
mod known_hosts;
mod push;
mod shell;
mod transport;

pub use transport::{SshTarget, SshTransport};
