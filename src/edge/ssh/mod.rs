//! Nodes over SSH: one verified connection per node, through jump hosts where the config says so, the agent brought
//! where it is missing.
//!
//! In: an [`SshTarget`] and the [`SshNetwork`] it lies in. Out: a `ports::Transport`. What flock's config leaves out
//! comes from `~/.ssh/config`. Nothing here asks a person anything: an unknown host key or a missing key is a typed
//! error with its remedy. May import: base, inventory, ports; russh appears only here.

mod auth;
mod client_config;
mod config_files;
mod config_lines;
mod connection;
mod first_use;
mod glob;
mod hashed;
mod host_certificate;
mod known_hosts;
mod login;
mod network;
mod push;
mod sending;
mod shell;
mod tokens;
mod transport;
mod verifier;

pub use known_hosts::known_host;
pub use login::{SshEnvironment, SshTarget, ssh_way};
pub use network::{Notice, Reached, SshNetwork};
pub use transport::SshTransport;
