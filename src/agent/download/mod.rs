//! The node fetches a set's files itself, over HTTPS.
//!
//! In: the files that the store lacks, and where they are. Out: whole, checked files in the store, and how far it is.
//! A few connections ask for pieces of the files, in the files' order, and write them into the partial where they
//! belong; one thread takes the digest along what is there without a gap. What is there is kept over a cut and a kill,
//! see [`record`].

pub mod record;

mod address;
mod chunks;
mod client;
mod fetch;
mod hash;
mod job;
mod pace;
mod part;
mod proxy;
mod run;
mod verdict;

#[cfg(test)]
mod tests;

pub use pace::Bucket;
pub use run::download;
