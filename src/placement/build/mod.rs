//! From the desired state, the inventory and candidate weights to a `Problem`.
//!
//! `supply` is what nodes offer, `shapes` what a model may take of them; shapes of several parts come from `unequal`,
//! `offload`, `parts` and `vision`, those over several nodes from `nodes`. `deny` and `quota` are the rules, `held` and
//! `holding` what runs, `price` what an hour costs.
//! `flows` and `distances` say what is sent how far. In a large cluster `classes` finds the nodes that are equal, so
//! that shapes and reasons are built once for each kind of machine, and `room` tells what is left on any of them.

pub mod classes;
pub mod deny;
pub mod distances;
pub mod flows;
pub mod held;
pub mod holding;
pub mod nodes;
pub mod offload;
pub mod parts;
pub mod price;
pub mod quota;
pub mod room;
pub mod shapes;
pub mod supply;
pub mod unequal;
pub mod vision;
