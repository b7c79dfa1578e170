//! The vocabulary every other room shares: units, names for formats and engines, digests, places in
//! files, diagnostics, and the tree of files a config repository is; and the small readers that several rooms need:
//! patterns, dates, texts made fit for a terminal, what the operating system writes.
//!
//! In: nothing. Out: plain values. May import: nothing of ours. Pure.

mod calendar;
mod diagnostic;
mod digest;
mod file_name;
mod glob;
mod home;
mod hop;
mod place;
mod secret;
mod shown;
mod system;
mod text;
mod tree;
mod units;
mod vocabulary;

pub use calendar::rfc3339;
pub use diagnostic::{Diagnostic, Related, Severity, sort_diagnostics};
pub use digest::{Digest, Hasher};
pub use file_name::{kept_path_problem, path_problem};
pub use glob::{glob, glob_bytes, glob_path};
pub use home::expand_home;
pub use hop::{Hop, MAX_HOPS};
pub use place::{Place, Spanned};
pub use secret::Secret;
pub use shown::{escape_obeyed, is_obeyed};
pub use system::{ProcessStat, passwd_home, passwd_name};
pub use text::{is_invisible, many_lines, one_line};
pub use tree::{Tree, TreeEntry};
pub use units::{Bytes, GIB, KIB, MIB, UnitError, format_bytes, format_rate, parse_bytes, parse_duration};
pub use vocabulary::{Dtype, EngineKind, InstanceState, ParseWordError, Quality, WeightFormat};
