//! Large clusters: equal nodes and equal models are counted, and only the answer is brought to named machines.
//!
//! `groups` makes classes of equal nodes, kinds of equal models and the ways that a kind may run on a class; `floor`
//! is the named machines with indexes that find a place quickly, `fill` puts on them what runs and what is missing,
//! `evict` makes way for ranks that may displace others. `master` writes the tiers as a linear program whose columns
//! are counts of copies and of card patterns, which `price` finds as they are needed: its optimum is the true bound.
//! `whole` solves the same in whole numbers over those patterns, `realise` brings the counts to named machines, `polish`
//! betters single copies, `prove` shows that nothing much better exists; `goal` is what a tier measures in a layout, `run` goes through the tiers and keeps the best,
//! `apart` does so with every part that nothing connects to the others. `hedge` knows how many replicas outlast losses of
//! spot nodes, `pack` on how many nodes a model is, `near` what traffic costs.

mod apart;
mod evict;
mod fill;
mod floor;
mod goal;
mod groups;
mod hedge;
mod master;
mod near;
mod pack;
mod polish;
mod price;
mod prove;
mod realise;
mod run;
mod whole;

pub use apart::solve;
