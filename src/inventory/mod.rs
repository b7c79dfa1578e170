//! What there is: nodes, accelerators, links, running instances; and what travels between flock and a node.
//!
//! In: answers of node agents, or an inventory file. Out: `Inventory`, checked and with defaults applied;
//! `InstanceSpec`, `MemberRecord` and the frames of the agent protocol. May import: base, weights. Pure.

mod calibration;
mod collected;
mod endpoint;
mod facts;
mod like;
mod links;
mod locate;
mod member;
mod read;
mod refusal;
mod request;
mod response;
mod revealed;
mod spec;
mod wire;

pub use calibration::*;
pub use collected::*;
pub use endpoint::endpoint_of;
pub use facts::*;
pub use links::*;
pub use member::*;
pub use read::{InventoryError, parse_inventory, refuse_control_characters};
pub use refusal::*;
pub use request::*;
pub use response::*;
pub use spec::*;
pub use wire::*;
