//! What a model is: GGUF, safetensors and config.json read through a "need these bytes" interface.
//!
//! In: a file listing and byte ranges. Out: variants with their architecture, files and tensor totals.
//! May import: base. Pure: whoever has the files (controller, node agent, hub) supplies the ranges.
//!
//! [`inspect`] is called in a loop: it answers [`Inspect::Need`] until the supplied [`Ranges`] hold every
//! header, then [`Inspect::Done`]. It never asks for tensor data. [`Lock`] is the format of `flock.lock`. What the files say is untrusted: lengths,
//! counts, nesting and names are bounded, and the answer to a bad file is a [`WeightsError`].

mod class_defaults;
#[cfg(feature = "controller")]
mod compare;
mod config_json;
mod error;
mod families;
mod ggml;
mod gguf;
mod gguf_model;
mod inspect;
mod json;
mod layers;
#[cfg(feature = "controller")]
mod lock;
mod names;
mod quantisation;
mod ranges;
mod safetensors;
mod safetensors_model;
#[cfg(feature = "controller")]
mod select;
mod variant;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

#[cfg(feature = "controller")]
pub use compare::difference;
pub use error::WeightsError;
pub use inspect::{Inspect, inspect, read_alongside};
#[cfg(feature = "controller")]
pub use lock::*;
#[cfg(feature = "controller")]
pub use names::is_projector;
pub use ranges::{Listing, Ranges};
#[cfg(feature = "controller")]
pub use select::{narrow, select};
pub use variant::*;

#[cfg(test)]
pub(crate) use samples::{GgufWriter, SafetensorsWriter, inspect_memory, one_layer_gguf};
