//! What a node agent answers.

use serde::{Deserialize, Serialize};

use super::{
    Applied, Collected, InstanceFacts, InstanceSpec, Listener, Measured, MeasuredEndpoint, MeasuredLink, MemberRecord,
    NodeFacts, Refusal, revealed,
};
use crate::base::Secret;

/// What a node agent answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and each crosses a wire")]
pub enum Response {
    /// To `Probe`.
    Facts {
        /// The node.
        node: Box<NodeFacts>,
        /// The member record this node holds.
        member: MemberRecord,
        /// The specifications of the desired instances.
        desired: Vec<InstanceSpec>,
        /// What the node has measured.
        #[serde(default)]
        measured: Measured,
    },
    /// To `Instances`, `Start`, `Supervise`.
    Instances {
        /// All instances of the cluster on this node.
        instances: Vec<InstanceFacts>,
        /// Whether a supervisor keeps them.
        #[serde(default)]
        supervised: bool,
    },
    /// To `Doctor`.
    Checks {
        /// What was looked at, in a fixed order.
        checks: Vec<Check>,
        /// The node's clock while it answered, Unix milliseconds.
        now_unix_ms: u64,
    },
    /// Done, nothing to tell.
    Done,
    /// To `FetchState`, `Put` and `Download`: bytes present per file, in the order of the set.
    Fetched {
        /// The set is complete and checked.
        complete: bool,
        /// Bytes of each file that need not be sent again.
        have_bytes: Vec<u64>,
    },
    /// Before the answer to `Download` and `Take`: at least every few seconds while bytes move.
    Progress {
        /// Bytes of the set that are there, those of an earlier attempt included.
        have_bytes: u64,
    },
    /// To `Collect`.
    Collected {
        /// What went, or would go.
        collected: Collected,
    },
    /// To `Key`.
    Key {
        /// The key.
        #[serde(with = "revealed")]
        key: Secret<String>,
        /// The port the engine really listens on.
        port: u16,
        /// Name the engine serves the model under.
        served_name: String,
    },
    /// To `Log`.
    Log {
        /// Position after the last byte returned.
        next: u64,
        /// The text, lossily decoded.
        text: String,
    },
    /// To `MeasureListen` and `Offer`.
    Listening {
        /// The port.
        port: u16,
        /// Addresses of this node that it knows of: the one that this connection came in on.
        addresses: Vec<String>,
    },
    /// To `MeasureConnect`.
    Link {
        /// The result.
        link: MeasuredLink,
    },
    /// To `MeasureEndpoints`.
    Endpoints {
        /// The results, in the order asked for.
        endpoints: Vec<MeasuredEndpoint>,
    },
    /// To `History`: oldest first, at most [`HISTORY_LENGTH`](super::HISTORY_LENGTH).
    History {
        /// The applies.
        applies: Vec<Applied>,
    },
    /// To `Listeners`: sorted by port.
    Listeners {
        /// One entry per listening socket.
        listeners: Vec<Listener>,
    },
    /// It could not be done.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As it should be.
    Ok,
    /// It works, and will bite under circumstances that the text names.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Which one; stable.
    pub id: String,
    /// How it went.
    pub health: Health,
    /// What was found.
    pub text: String,
    /// What to do, as a sentence; `None` where nothing needs to be done.
    pub remedy: Option<String>,
}

impl Check {
    /// Nothing to do.
    pub fn ok(id: &str, text: impl Into<String>) -> Self {
        Self { id: id.to_owned(), health: Health::Ok, text: text.into(), remedy: None }
    }

    /// Works for now.
    pub fn warn(id: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { id: id.to_owned(), health: Health::Warn, text: text.into(), remedy: Some(remedy.into()) }
    }

    /// Does not work.
    pub fn fail(id: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { id: id.to_owned(), health: Health::Fail, text: text.into(), remedy: Some(remedy.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Request;

    #[test]
    fn a_key_crosses_the_wire_and_is_never_printed() {
        let key = Secret::new("0123456789abcdef".to_owned());
        let response = Response::Key { key, port: 20000, served_name: "coder".into() };
        let printed = format!("{response:?} {response:#?}");
        assert!(!printed.contains("0123456789abcdef") && printed.contains("coder"), "{printed}");
        let json = serde_json::json!({
            "response": "key", "key": "0123456789abcdef", "port": 20000, "served_name": "coder",
        });
        assert_eq!(serde_json::to_value(&response).expect("plain data"), json);
        let back: Response = serde_json::from_value(json).expect("the same form");
        assert_eq!(back, response);
        let Response::Key { key, .. } = back else { panic!("a key") };
        assert_eq!(key.reveal(), "0123456789abcdef");
        let listen = Request::MeasureListen { key: Secret::new("fedcba9876543210".into()), ttl_ms: 1 };
        assert!(!format!("{listen:?}").contains("fedcba"));
        assert_eq!(serde_json::to_value(&listen).expect("plain data")["key"], "fedcba9876543210");
    }
}
