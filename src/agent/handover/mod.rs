//! A set's files from one node's store into another's.
//!
//! The node that has them listens for one connection (see [`super::listener`]), encrypted with a key that both were
//! given through SSH. The other one names a file and the byte to begin at; it gets the file's size, then its bytes, and
//! checks the digest itself. Files of the offered set are sent and nothing else. A cut ends both sides; what came is
//! kept, and the next attempt has a key of its own.

mod message;
mod offer;
mod take;

pub use offer::offer;
pub use take::{Taking, take};

#[cfg(test)]
mod tests;
