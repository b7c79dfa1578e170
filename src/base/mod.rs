//! The vocabulary every other room shares: units, names for formats and engines, digests, places in
//! files, diagnostics, and the tree of files a config repository is.
//!
//! In: nothing. Out: plain values. May import: nothing of ours. Pure.

mod diagnostic;
mod digest;
mod home;
mod place;
mod secret;
mod tree;
mod units;
mod vocabulary;

pub use diagnostic::{Diagnostic, Related, Severity, sort_diagnostics};
pub use digest::{Digest, Hasher};
pub use home::expand_home;
pub use place::{Place, Spanned};
pub use secret::Secret;
pub use tree::{Tree, TreeEntry};
pub use units::{Bytes, GIB, KIB, MIB, Tokens, UnitError, format_bytes, parse_bytes, parse_duration};
pub use vocabulary::{Dtype, EngineKind, InstanceState, ParseWordError, Quality, WeightFormat};
