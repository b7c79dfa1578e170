//! The Hugging Face hub, or a mirror of it.
//!
//! In: [`HubSettings`] (address, token, certificates, proxy, cache folder, limits), from the environment that the hub's
//! own tools read. Out: [`HfHub`], the `ports::Hub` of this program. `listing.rs` asks for revisions, model cards and
//! trees, `ranges.rs` for bytes of files; `requests.rs` holds what every request obeys (how many at once, deadlines,
//! retries, whose token), `errors.rs` what each refusal means, `cache.rs` what was learnt at a commit.
//!
//! hf-hub says what a revision is; where it cannot do what is needed, the reqwest client that it was given is asked
//! directly, and the function says why. Both appear only here.

mod cache;
mod client;
mod errors;
mod listing;
mod names;
mod ranges;
mod requests;
mod settings;

pub use client::HfHub;
pub use settings::{HubLimits, HubProxy, HubSettings};
