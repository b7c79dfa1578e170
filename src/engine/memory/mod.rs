//! What an engine says in its log about the memory that it took.
//!
//! In: the beginning of a log, as an engine wrote it. Out: bytes by device and on the host, and how much the cache
//! holds. A line that is not known is passed over; a figure that no line gives is `None`, never zero. Nothing of a
//! log but its numbers and the number of a device is kept. May import: base. Pure.

mod found;
mod llama_cpp;
mod sglang;
#[cfg(test)]
mod tests;
mod vllm;

pub use found::{DeviceMemory, EngineMemory, read_memory};
