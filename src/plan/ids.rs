//! Identifiers of the findings that plans carry. FLK400 to FLK499 are this room's.

use crate::config::DiagnosticId;

/// A node's ports overlap its ephemeral range.
pub const PORTS_OVERLAP: &str = "FLK400";
/// Something keeps running although the config no longer names it, or although it could not be started anew.
pub const KEPT: &str = "FLK401";
/// A remark of the placement.
pub const PLACEMENT_NOTE: &str = "FLK402";

/// Weight files that an index names and that are not there.
pub const MISSING_FILES: &str = "FLK403";

/// The cluster was last applied from a commit that this repository does not have.
pub const FOREIGN: &str = "FLK404";

/// A model found no place.
pub const NOT_PLACED: &str = "FLK405";

/// An engine took more than was planned for it.
pub const UNDER_ESTIMATE: &str = "FLK406";

/// A policy holds steps back for now.
pub const HELD_BACK: &str = "FLK407";

/// Every identifier of this room, in order.
pub const PLAN_DIAGNOSTICS: &[DiagnosticId] = &[
    DiagnosticId {
        id: PORTS_OVERLAP,
        title: "ports overlap the ephemeral range",
        explanation: "Any outgoing connection on the node may take such a port first. The agent then walks the alternates.",
    },
    DiagnosticId {
        id: KEPT,
        title: "something keeps running as it is",
        explanation: "A model left the config under `prune \"keep\"`, its weights cannot be read now, or what is found on \
                      its node is no longer what it was started with. flock does not stop it.",
    },
    DiagnosticId {
        id: PLACEMENT_NOTE,
        title: "a remark of the placement",
        explanation: "Something about the facts had to be assumed, such as a driver reserve that the driver does not tell.",
    },
    DiagnosticId {
        id: MISSING_FILES,
        title: "weight files are missing on this machine",
        explanation: "An index names files that are not in the folder of a `path:` source. Sizes come from the index, so a plan can be made and looked at; apply refuses until the files are there.",
    },
    DiagnosticId {
        id: FOREIGN,
        title: "last applied from another repository",
        explanation: "The nodes remember a commit that this repository does not have. Two repositories with one cluster name on the same nodes stop each other's models: give one of them another name. After a rewritten history, or in a shallow clone, it is harmless.",
    },
    DiagnosticId {
        id: NOT_PLACED,
        title: "a model does not fit",
        explanation: "On the hardware of the inventory, a model has fewer replicas than it asks for. The reasons are given per node, and the nearest change that would make it fit.",
    },
    DiagnosticId {
        id: UNDER_ESTIMATE,
        title: "an engine took more than was planned",
        explanation: "What an instance held once it ran was more than its estimate. From then on flock plans the same weights, engine, version and accelerators with what was measured, and a margin; what runs stays where it is. An estimate that is too low is a fault of flock: please report it with the output of `flock explain`.",
    },
    DiagnosticId {
        id: HELD_BACK,
        title: "steps wait",
        explanation: "A window denies them now, enough has moved in the past hour, or most nodes are away at once and their facts are not trusted. The rest of the plan can be applied; what waits is planned again.",
    },
];
