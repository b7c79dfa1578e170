//! Explains one model by solving again: nothing is said that was not solved.
//!
//! `why` puts it together: `account` counts the objective by term, `rival` forces what was not taken, `trial` solves
//! what `change` changes: `sensitivity` for what would turn the answer, `conflict` for what is in the way together.

pub mod account;
pub mod change;
pub mod conflict;
pub mod rival;
pub mod sensitivity;
pub mod trial;
pub mod why;
