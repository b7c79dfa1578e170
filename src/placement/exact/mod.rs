//! A problem as rows over every accelerator, and the strict tiers over them.
//!
//! `columns`, `policies` and `traffic` write the rows, `tiers` solves the tiers from
//! `greedy`'s incumbent, `damping` keeps back moves that are not worth it.

pub mod columns;
pub mod damping;
pub mod greedy;
pub mod policies;
pub mod tiers;
pub mod traffic;
