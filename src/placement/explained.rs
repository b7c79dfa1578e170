//! What an explanation says of a model.

use serde::Serialize;

use crate::base::EngineKind;
use crate::placement::Obstacle;
use crate::placement::explain::change::Change;

/// Why a model runs where it does, or does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    /// Ways to run it that were not taken, by what they lost by.
    pub lost: Vec<LostGroup>,
    /// The objective by term; terms without a weight are left out.
    pub objective: Vec<TermShare>,
    /// What would change the answer, each solved, the smallest change first.
    pub turns: Vec<Turn>,
    /// What keeps one more replica from its place, together.
    pub together: Vec<Obstacle>,
    /// Whether it has all that it can have: every replica, each in the best variant.
    pub content: bool,
    /// What could not be computed, and why.
    pub notes: Vec<String>,
}

/// What a way to run a model lost by, the closest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LostBy {
    /// It fits and is as good: the order of equal places decided.
    Equal,
    /// It fits, and some tier would be worse.
    Worse,
    /// The model has no place, and would have this one only at the cost of what counts more.
    Cost,
    /// It fits by itself, not beside what is placed.
    Room,
    /// It would be too far from what the model talks to.
    Latency,
    /// It does not fit.
    Size,
    /// The model cannot be split so.
    Split,
    /// A selector, quota, denial, hold or the like rules it out.
    Policy,
    /// The node does not answer.
    Away,
    /// Engine or device cannot run it.
    Support,
}

impl LostBy {
    /// The group of a constraint word.
    pub fn of(constraint: &str) -> Self {
        match constraint {
            "memory" | "ram" | "disk" | "accelerators" => Self::Size,
            "split" => Self::Split,
            "engine" | "hardware" => Self::Support,
            "latency" => Self::Latency,
            "unreachable" => Self::Away,
            _ => Self::Policy,
        }
    }

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Self::Equal => "as good, and later in the order of equal places",
            Self::Worse => "fits, but worse",
            Self::Cost => "only at the cost of what counts more",
            Self::Room => "no room beside what is placed",
            Self::Latency => "too far from what it talks to",
            Self::Size => "does not fit",
            Self::Split => "no legal split",
            Self::Policy => "ruled out by a policy, a selector or a hold",
            Self::Away => "the node does not answer",
            Self::Support => "engine or device cannot run it",
        }
    }
}

/// Ways that lost by the same thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LostGroup {
    /// By what.
    pub by: LostBy,
    /// How many ways, each node counted.
    pub shapes: usize,
    /// What they are, the closest first; what is the same on equal nodes together.
    pub members: Vec<Lost>,
}

/// A way to run a model that was not taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lost {
    /// Candidate label.
    pub variant: String,
    /// Engine; `None` where the reason holds for all.
    pub engine: Option<EngineKind>,
    /// Nodes; `*` is anywhere.
    pub nodes: Vec<String>,
    /// Accelerators; 0 on the CPU, `None` where the reason holds for any number.
    pub ranks: Option<u32>,
    /// The constraint, where one rules it out.
    pub constraint: Option<String>,
    /// What was needed, in `unit`.
    pub needed: Option<u64>,
    /// What there was, in `unit`.
    pub available: Option<u64>,
    /// `bytes|accelerators|tokens|count`.
    pub unit: Option<String>,
    /// The tier that would be worse.
    pub tier: Option<LostTier>,
    /// One clause for people.
    pub text: String,
}

impl Lost {
    /// How far from being taken, within its group.
    pub(in crate::placement) fn distance(&self) -> f64 {
        match (&self.tier, self.needed, self.available) {
            (Some(tier), ..) => (tier.with - tier.without).abs(),
            (None, Some(needed), Some(available)) if needed > 0 => {
                needed.saturating_sub(available) as f64 / needed as f64
            }
            _ => f64::INFINITY,
        }
    }

    /// An order for what is as far.
    pub(in crate::placement) fn key(&self) -> (&str, Option<EngineKind>, Option<u32>, &[String], &str) {
        (&self.variant, self.engine, self.ranks, &self.nodes, &self.text)
    }
}

/// The first tier in which a way that was not taken is worse.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LostTier {
    /// Its name, as in `solver.tiers`.
    pub name: String,
    /// What is reached without it.
    pub without: f64,
    /// What is reached with it.
    pub with: f64,
    /// Of a weighted tier: terms, and how much more each costs (weight times value).
    pub terms: Vec<(String, f64)>,
    /// Whether that was solved with this way forced and the rest free; otherwise it is the difference of the two ways.
    pub solved: bool,
}

/// A term of the objective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TermShare {
    /// Its word in the config.
    pub term: String,
    /// What its value counts.
    pub unit: String,
    /// The config's weight.
    pub weight: f64,
    /// What this model has of it.
    pub value: f64,
    /// Weight times value.
    pub cost: f64,
    /// What all models have of it.
    pub total_value: f64,
    /// Weight times that.
    pub total_cost: f64,
}

/// A change that would turn the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Turn {
    /// `setting`, `memory`, `replicas`, `accelerators` or `node`.
    pub kind: String,
    /// `with 3.2 GiB more on ada-1`.
    pub change: String,
    /// Bytes more on each accelerator, where that is the change.
    pub bytes: Option<u64>,
    /// `it would take bf16 on ada-1`.
    pub effect: String,
    /// The change itself.
    #[serde(skip)]
    pub change_made: Change,
}

/// A running instance that loses its place to a higher rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Victim {
    /// Model name.
    pub model: String,
    /// Replica number.
    pub replica: u32,
    /// Instance id.
    pub instance: String,
    /// Where it runs.
    pub node: String,
    /// Rank of its model.
    pub rank: u32,
    /// Models that take its place.
    pub by: Vec<String>,
    /// How long its last load took.
    pub load_ms: Option<u64>,
    /// Live sessions on it.
    pub live_sessions: u32,
    /// Why this one: one clause.
    pub why: String,
}
