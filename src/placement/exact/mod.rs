//! A problem as rows over every accelerator, and the strict tiers over them.
//!
//! `columns`, `policies` and `traffic` write the rows, `tiers` solves the tiers from
//! `greedy`'s incumbent, `order` chooses among equal places, `damping` keeps back moves that are not worth it.

pub mod columns;
pub mod damping;
pub mod greedy;
pub mod order;
pub mod policies;
pub mod tiers;
pub mod traffic;
