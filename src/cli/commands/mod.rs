//! One file per command: its arguments, whose doc comments are the help, and one function.

pub mod apply;
pub mod ask;
mod carry_out;
pub mod completions;
pub mod destroy;
pub mod discover;
pub mod drift;
pub mod explain;
pub mod help;
pub mod init;
mod instances;
pub mod logs;
pub mod plan;
pub mod protect;
pub mod show;
pub mod size;
pub mod status;
pub mod validate;
