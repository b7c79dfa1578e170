//! What the hub is asked, by topic.

mod cache;
mod clients;
mod faults;
mod independent;
mod listing;
mod network;
mod ranges;

use clients::*;
