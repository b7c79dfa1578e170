//! What an apply reports while it runs, one JSON line each, and what became of it in the end.

use serde::{Deserialize, Serialize};

use super::Verb;

/// Something that happened during an apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// First line of the stream.
    ApplyStarted {
        /// 1.
        format: u32,
        /// Cluster name.
        cluster: String,
        /// Digest of the plan.
        plan_digest: String,
        /// Number of steps.
        steps: u32,
        /// Bytes to bring.
        download_bytes: u64,
    },
    /// Something about a node before or between steps, such as a connection made.
    Node {
        /// The node.
        node: String,
        /// Whether it is fit for its steps.
        ok: bool,
        /// One sentence.
        text: String,
    },
    /// A step begins.
    StepStarted {
        /// Its id.
        step: u32,
        /// What it does.
        verb: Verb,
        /// The model.
        model: String,
        /// The replica.
        replica: u32,
        /// The node.
        node: String,
        /// One sentence.
        text: String,
    },
    /// A step goes on.
    StepProgress {
        /// Its id.
        step: u32,
        /// The node.
        node: String,
        /// Bytes done.
        done_bytes: Option<u64>,
        /// Of how many.
        total_bytes: Option<u64>,
        /// How many came per second lately.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_s: Option<u64>,
        /// How long the rest takes at that rate.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_ms: Option<u64>,
        /// What it is doing, such as `loading weights`.
        text: String,
    },
    /// A step is done.
    StepDone {
        /// Its id.
        step: u32,
        /// The node.
        node: String,
        /// How long it took.
        took_ms: u64,
        /// One sentence.
        text: String,
    },
    /// A step failed.
    StepFailed {
        /// Its id.
        step: u32,
        /// The node.
        node: String,
        /// What went wrong.
        text: String,
        /// What to do.
        hint: Option<String>,
    },
    /// A step was not begun.
    StepSkipped {
        /// Its id.
        step: u32,
        /// The node.
        node: String,
        /// Why, such as `step 3 failed`.
        text: String,
    },
    /// Last line of the stream.
    ApplyEnded {
        /// What became of every step.
        outcome: Outcome,
    },
}

/// What became of the steps of an apply. Every step is in exactly one list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Ids of steps that are done, in the order they ended.
    pub done: Vec<u32>,
    /// Steps that failed.
    pub failed: Vec<StepEnd>,
    /// Steps that were not begun.
    pub not_started: Vec<StepEnd>,
    /// Whether someone interrupted it.
    pub interrupted: bool,
}

/// A step that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepEnd {
    /// Its id.
    pub step: u32,
    /// Why.
    pub text: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Outcome {
    /// Whether every step is done.
    pub fn complete(&self) -> bool {
        self.failed.is_empty() && self.not_started.is_empty() && !self.interrupted
    }
}

impl Event {
    /// The step it is about.
    pub fn step(&self) -> Option<u32> {
        match self {
            Self::StepStarted { step, .. }
            | Self::StepProgress { step, .. }
            | Self::StepDone { step, .. }
            | Self::StepFailed { step, .. }
            | Self::StepSkipped { step, .. } => Some(*step),
            Self::ApplyStarted { .. } | Self::Node { .. } | Self::ApplyEnded { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_json_line_that_names_itself_first() {
        let event = Event::StepDone { step: 3, node: "ada-1".into(), took_ms: 12, text: "ready".into() };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"event":"step_done","step":3,"node":"ada-1","took_ms":12,"text":"ready"}"#);
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        assert_eq!(event.step(), Some(3));
    }

    #[test]
    fn an_interrupted_apply_is_not_complete() {
        assert!(Outcome::default().complete());
        assert!(!Outcome { interrupted: true, ..Outcome::default() }.complete());
    }
}
