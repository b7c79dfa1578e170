//! KDL 2 text to a tree of nodes with places.
//!
//! In: bytes of a file. Out: nodes whose every word knows its line and column, and syntax findings
//! with hints. May import: base, and this room's ids.
//!
//! The crate `kdl` reads every node; what stands around it here makes that safe and helpful. `kdl` recurs
//! per block, per `*` in a comment, per `/-` and per misplaced character, so that a hostile or merely
//! broken file would end the process; and its first error hides what else a file says. So the scan
//! ([`scan`]) finds comments, strings, `/-` and braces, and cuts the text into heads: a node without its
//! block. `kdl` is given one head at a time ([`head`]), without comments; in it no recursion begins.
//! A head that it refuses is given to it again word by word: the good words stay, and each bad one gets
//! a remedy ([`explain`]).

pub(super) mod chars;
mod explain;
mod head;
mod node;
mod scan;
pub(super) mod strings;
mod text;

pub(super) use explain::thousands;
pub(super) use node::{Entry, Node, Value};
pub(super) use scan::parse;
pub use text::{MAX_DEPTH, MAX_FILE_BYTES};
