//! KDL files to the desired state.
//!
//! In: a [`Tree`](crate::base::Tree) with the files of a config repository. Out: [`Loaded`], the resolved
//! [`Desired`] state or every finding of every file, and a digest of the meaning. May import: base, engine. Pure.
//!
//! The way of a file: `syntax` reads it, `check` holds it against the tables (`schema`, one table per node
//! kind beside its decoder), the decoders (`cluster`, `node`, `model`, …) make typed values and check
//! references through `context`, `program` checks workflows as programs, and `load` puts it together.
//! Nothing is ignored: what a table does not know is an error at its place, and a test proves that
//! everything a table knows is read.

mod agent;
mod cascade;
mod check;
mod cluster;
mod condition;
mod context;
mod desired;
mod engine;
mod fmt;
pub mod ids;
mod json_schema;
mod load;
mod model;
mod model_words;
mod names;
mod node;
mod owned;
mod parallel;
mod paths;
mod place_labels;
mod policy;
mod program;
mod provider;
pub mod schema;
mod schema_document;
mod source;
mod syntax;
mod template;
mod tool;
mod values;
mod what_if;
mod workflow;

#[cfg(test)]
mod tests;

pub use agent::{Agent, Budget, Text};
pub use cluster::{ClusterExtras, Gateway, GatewayToken, GitSource, Http, Notify, NotifyTarget, Tls};
pub use condition::{Condition, Field, Flag};
pub use context::SecretRef;
pub use desired::*;
pub use engine::{Archive, EngineExtras};
pub use fmt::{Unformatted, format_kdl};
pub use ids::{CONFIG_DIAGNOSTICS, DiagnosticId};
pub use load::{CLUSTER_FILE, Loaded, is_config_file, load, load_with};
pub use model::{ModelExtras, OnDrift, OnOom, ProviderModel, Rollout};
pub use names::{name_problem, near_miss, nearest};
pub use node::NodeExtras;
pub use place_labels::with_labels_of_facts;
pub use policy::{Approval, Denial, MoveOnLoss, OnNodeLost, OnPending, Policies, PriorityClass, Prune, Quota, Window};
pub use provider::{Provider, ProviderKind, TokenPrice};
pub use schema_document::{Schema, SchemaArgument, SchemaNode, SchemaProperty, SchemaType, schema};
pub use source::parse_source;
pub use syntax::{MAX_DEPTH, MAX_FILE_BYTES};
pub use tool::{Tool, ToolServer};
pub use values::{Date, Days, Money, RequestRate, Share, TimeOfDay};
pub use what_if::{AddedNode, Alteration, WhatIf, what_if};
pub use workflow::{Action, ForEach, Input, InputKind, Repeat, Step, Traffic, Wait, Workflow};
