//! Why a node agent refused.

use serde::{Deserialize, Serialize};

use super::HolderProcess;
use crate::base::format_bytes;

/// Why a node agent refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// Another apply holds the lease.
    #[error("the lease is held by {holder} since {since}")]
    LeaseHeld {
        /// Who.
        holder: String,
        /// Since when, RFC 3339.
        since: String,
        /// Milliseconds until it expires unless renewed.
        expires_in_ms: u64,
        /// Id of the lease, for whoever knows that its holder is dead.
        #[serde(default)]
        id: String,
        /// The holder's process, where it is known.
        #[serde(default)]
        process: Option<Box<HolderProcess>>,
    },
    /// Another connection is at it: another apply, or another node that shares the folder.
    #[error("{what} is being received already")]
    Busy {
        /// At what.
        what: String,
    },
    /// The request's generation is older than the node's.
    #[error("generation {offered} is older than the node's {held}")]
    Stale {
        /// In the request.
        offered: u64,
        /// On the node.
        held: u64,
    },
    /// Nothing of that name here.
    #[error("{what} is not known here")]
    Unknown {
        /// What was asked for.
        what: String,
    },
    /// Not enough disk.
    #[error("the disk of {path} has {} free, and {} are needed", format_bytes(*.free_bytes), format_bytes(*.needed_bytes))]
    Disk {
        /// Where.
        path: String,
        /// Needed.
        needed_bytes: u64,
        /// Free.
        free_bytes: u64,
    },
    /// A file arrived with another digest.
    #[error("{file} has digest {found}, expected {expected}")]
    Digest {
        /// The file.
        file: String,
        /// What was promised.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// The hub, or the way to it, gives a file to nobody who asks like this. Asking again changes nothing.
    #[error("{text}")]
    Hub {
        /// What it answered; `None` where no answer came.
        status: Option<u16>,
        /// What went wrong.
        text: String,
        /// What to do, as a sentence.
        hint: String,
    },
    /// Two nodes cannot meet, or lost each other: another way is left.
    #[error("the other node cannot be reached: {text}")]
    Unreached {
        /// Why, by address.
        text: String,
    },
    /// Anything else; the text is for people.
    #[error("{text}")]
    Failed {
        /// What went wrong.
        text: String,
    },
}
