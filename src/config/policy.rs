//! Files under `policies/`: priorities, protections, limits.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::condition::{self, Condition};
use super::context::Context;
use super::ids;
use super::model::OnDrift;
use super::schema::{NodeSpec, Type, arg, prop};
use super::syntax::{Entry, Node};
use super::values::{self, Days, Share, TimeOfDay};
use crate::base::{Bytes, Spanned};

const VERBS: Type = Type::Words(&["start", "stop", "restart", "move", "preempt", "destroy"]);

/// `priority`.
pub(super) static PRIORITY: NodeSpec = NodeSpec::new("priority", "a class that models and workflows name")
    .args(&[arg("name", Type::Name)])
    .props(&[
        prop("rank", Type::Whole(1, 1_000_000), "higher is placed first").required(),
        prop("preempts", Type::Bool, "may displace running instances of lower ranks").default("#false"),
    ])
    .many();
/// `quota`.
pub(super) static QUOTA: NodeSpec = NodeSpec::new("quota", "the most that models with a label may take")
    .args(&[arg("name", Type::Text)])
    .props(&[
        prop("label", Type::Name, "label of the models").required(),
        prop("is", Type::Scalar, "its value").required(),
        prop("accelerators", Type::Whole(0, 1_000_000), "accelerators in all"),
        prop("vram", Type::Bytes, "accelerator memory in all"),
    ])
    .many();
/// `deny`.
pub(super) static DENY: NodeSpec =
    NodeSpec::new("deny", "what must never be placed").args(&[arg("name", Type::Text)]).children(&[&WHEN]).many();
static WHEN: NodeSpec = NodeSpec::new("when", "the condition").args(&[arg("condition", Type::Condition)]).required();
/// `protect`.
pub(super) static PROTECT: NodeSpec = NodeSpec::new("protect", "what needs an explicit unprotect before it is stopped")
    .props(&[prop("model", Type::Name, "the model").required()])
    .many();
/// `window`.
pub(super) static WINDOW: NodeSpec = NodeSpec::new("window", "times at which something is not done")
    .args(&[arg("name", Type::Text)])
    .props(&[
        prop("deny", VERBS, "what is not done").required(),
        prop("days", Type::Days, "on which days").default("all"),
        prop("from", Type::TimeOfDay, "from").required(),
        prop("to", Type::TimeOfDay, "to").required(),
        prop("zone", Type::Zone, "time zone").required(),
    ])
    .many();
/// `limit`.
pub(super) static LIMIT: NodeSpec = NodeSpec::new("limit", "the most that happens at once")
    .props(&[
        prop("moves-per-hour", Type::Whole(0, 1_000_000), "moves and preempting stops per hour"),
        prop("stop-share", Type::Percent, "share of the instances that one apply may stop"),
        prop("download", Type::ByteRate, "bytes per second of weights to all nodes together, whichever way they take"),
    ])
    .many();
/// `approval`.
pub(super) static APPROVAL: NodeSpec = NodeSpec::new("approval", "what needs somebody's yes")
    .props(&[prop("verbs", VERBS, "what").required(), prop("by", Type::List, "whose: people, or `@group`").required()])
    .many();
/// `prune`.
pub(super) static PRUNE: NodeSpec = NodeSpec::new("prune", "what happens to what is no longer declared")
    .args(&[arg("how", Type::Word(&["keep", "confirm", "auto"]))])
    .default("confirm");
/// `on-node-lost`.
pub(super) static ON_NODE_LOST: NodeSpec = NodeSpec::new("on-node-lost", "what happens when a node does not answer")
    .props(&[
        prop("after", Type::DurationOrZero, "how long to wait").required(),
        prop("move", Type::Word(&["stateless", "all", "none"]), "which models move").required(),
    ])
    .later();
/// `spot`.
pub(super) static SPOT: NodeSpec = NodeSpec::new("spot", "how spot nodes are used").props(&[prop(
    "hedge",
    Type::Whole(0, 1000),
    "losses at once that must not make a model fail",
)
.required()]);
/// `threshold`.
pub(super) static THRESHOLD: NodeSpec = NodeSpec::new("threshold", "the least gain that is worth it").props(&[prop(
    "move",
    Type::Percent,
    "for a move, of the objective of what would move",
)
.required()]);
/// `on-pending`.
pub(super) static ON_PENDING: NodeSpec = NodeSpec::new("on-pending", "what is done about pending changes")
    .args(&[arg("what", Type::Word(&["apply", "report"]))])
    .later();
/// `on-drift`.
pub(super) static ON_DRIFT: NodeSpec = NodeSpec::new("on-drift", "what is done about drift")
    .args(&[arg("what", Type::Word(&["correct", "report"]))])
    .later();
/// `on-decay`.
pub(super) static ON_DECAY: NodeSpec = NodeSpec::new("on-decay", "what is done about slow decay")
    .args(&[arg("what", Type::Word(&["correct", "report"]))])
    .later();

/// The policies of all files.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Policies {
    /// Priority classes by name.
    pub priorities: BTreeMap<String, PriorityClass>,
    /// Models whose stopping needs an explicit unprotect, in order of their names. Enforced.
    pub protect: Vec<Spanned<String>>,
    /// What happens to what is no longer declared. Enforced.
    pub prune: Option<Spanned<Prune>>,
    /// Share of the instances that one apply may stop. Enforced.
    pub stop_share: Option<Spanned<Share>>,
    /// Moves and preempting stops per hour. Enforced.
    pub moves_per_hour: Option<Spanned<u32>>,
    /// Bytes per second that all fetches of a cluster together may take. Enforced.
    pub download: Option<Spanned<Bytes>>,
    /// The most that models with a label may take, by name. Enforced.
    pub quotas: BTreeMap<String, Quota>,
    /// What must never be placed, by name: the condition. Enforced.
    pub denials: BTreeMap<String, Denial>,
    /// Times at which something is not done, by name. Enforced.
    pub windows: BTreeMap<String, Window>,
    /// What needs somebody's yes. Enforced.
    pub approvals: Vec<Spanned<Approval>>,
    /// What happens when a node does not answer.
    pub on_node_lost: Option<Spanned<OnNodeLost>>,
    /// Losses of spot nodes at once that must not make a model fail. Enforced, with a note where it cannot be met.
    pub spot_hedge: Option<Spanned<u32>>,
    /// The least gain that is worth a move. Enforced.
    pub move_threshold: Option<Spanned<Share>>,
    /// What is done about pending changes.
    pub on_pending: Option<Spanned<OnPending>>,
    /// What is done about drift.
    pub on_drift: Option<Spanned<OnDrift>>,
    /// What is done about slow decay.
    pub on_decay: Option<Spanned<OnDrift>>,
}

/// A priority class.
#[derive(Debug, Clone, Serialize)]
pub struct PriorityClass {
    /// Its name.
    pub name: Spanned<String>,
    /// Higher is placed first; at least 1.
    pub rank: u32,
    /// May displace running instances of lower ranks.
    pub preempts: bool,
}

/// What happens to what is no longer declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prune {
    /// It stays.
    Keep,
    /// It is stopped after a yes.
    Confirm,
    /// It is stopped.
    Auto,
}

/// The most that models with a label may take.
#[derive(Debug, Clone, Serialize)]
pub struct Quota {
    /// Its name.
    pub name: Spanned<String>,
    /// Label of the models.
    pub label: String,
    /// Its value.
    pub is: String,
    /// Accelerators in all.
    pub accelerators: Option<u32>,
    /// Accelerator memory in all.
    pub vram: Option<Bytes>,
}

/// What must never be placed.
#[derive(Debug, Clone, Serialize)]
pub struct Denial {
    /// Its name.
    pub name: Spanned<String>,
    /// The condition.
    pub when: Spanned<Condition>,
}

/// Times at which something is not done.
#[derive(Debug, Clone, Serialize)]
pub struct Window {
    /// Its name.
    pub name: Spanned<String>,
    /// What is not done.
    pub deny: Vec<String>,
    /// On which days; `None` is all.
    pub days: Option<Days>,
    /// From.
    pub from: TimeOfDay,
    /// To; before `from`, it is on the next day.
    pub to: TimeOfDay,
    /// Time zone.
    pub zone: Spanned<String>,
}

/// What needs somebody's yes.
#[derive(Debug, Clone, Serialize)]
pub struct Approval {
    /// What.
    pub verbs: Vec<String>,
    /// Whose: people, or `@group`.
    pub by: Vec<String>,
}

/// What happens when a node does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OnNodeLost {
    /// How long to wait.
    pub after: Duration,
    /// Which models move.
    pub moves: MoveOnLoss,
}

/// Which models move from a lost node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveOnLoss {
    /// Models without live sessions.
    Stateless,
    /// All.
    All,
    /// None.
    None,
}

/// What is done about pending changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnPending {
    /// They are applied.
    Apply,
    /// They are reported.
    Report,
}

impl Policies {
    /// Whether stopping a model needs an explicit unprotect.
    pub fn protects(&self, model: &str) -> bool {
        self.protect.iter().any(|name| name.value == model)
    }
}

/// Reads `priority`; models and workflows need the classes before everything else.
pub(super) fn priority(node: &Node, cx: &mut Context<'_>) {
    let Some(name) = node.arg(0).and_then(Entry::spanned) else { return };
    let rank = node.prop("rank").and_then(Entry::whole).map_or(1, |rank| rank.value);
    let preempts = node.prop("preempts").and_then(|entry| entry.get(values::boolean)).is_some_and(|flag| flag.value);
    cx.priorities.entry(name.value.clone()).or_insert(PriorityClass { name, rank, preempts });
}

/// Whether a top-level word is a policy that [`decode`] reads.
pub(super) fn is_policy(word: &str) -> bool {
    const WORDS: &[&NodeSpec] = &[
        &QUOTA,
        &DENY,
        &PROTECT,
        &WINDOW,
        &LIMIT,
        &APPROVAL,
        &PRUNE,
        &ON_NODE_LOST,
        &SPOT,
        &THRESHOLD,
        &ON_PENDING,
        &ON_DRIFT,
        &ON_DECAY,
    ];
    WORDS.iter().any(|spec| spec.word == word)
}

/// Sets what may be said once in all files.
fn once<T>(slot: &mut Option<Spanned<T>>, value: Option<Spanned<T>>, what: &str, cx: &mut Context<'_>) {
    let Some(value) = value else { return };
    if let Some(first) = slot {
        let message = format!("`{what}` is given twice");
        cx.error_about(
            ids::DUPLICATE_CHILD,
            &value.place,
            message,
            "keep one; policies of all files hold together",
            (&first.place, "first given here"),
        );
        return;
    }
    *slot = Some(value);
}

fn strings(entry: &Entry) -> Option<Vec<String>> {
    entry.get(values::list).map(|list| {
        let mut words = list.value;
        words.sort();
        words.dedup();
        words
    })
}

/// Reads one policy other than `priority`.
pub(super) fn decode(node: &Node, policies: &mut Policies, cx: &mut Context<'_>) {
    let place = node.place().clone();
    let first = node.arg(0);
    match node.word() {
        "protect" => {
            let Some(model) = node.prop("model").and_then(Entry::spanned) else { return };
            if cx.refer("model", &model) && !policies.protects(&model.value) {
                policies.protect.push(model);
            }
        }
        "prune" => {
            let how = first.and_then(|entry| {
                let how = match entry.text()? {
                    "keep" => Prune::Keep,
                    "confirm" => Prune::Confirm,
                    "auto" => Prune::Auto,
                    _ => return None,
                };
                Some(Spanned::new(how, place))
            });
            once(&mut policies.prune, how, "prune", cx);
        }
        "limit" => {
            if node.entries.is_empty() {
                cx.error(
                    ids::MISSING_PROPERTY,
                    &place,
                    "`limit` without a limit",
                    "write `stop-share=\"25%\"`, `moves-per-hour=…` or `download=\"…\"`",
                );
            }
            once(
                &mut policies.stop_share,
                node.prop("stop-share").and_then(|e| e.get(values::percent)),
                "stop-share",
                cx,
            );
            once(
                &mut policies.moves_per_hour,
                node.prop("moves-per-hour").and_then(Entry::whole),
                "moves-per-hour",
                cx,
            );
            once(&mut policies.download, node.prop("download").and_then(|e| e.get(values::byte_rate)), "download", cx);
        }
        "quota" => quota(node, policies, cx),
        "deny" => {
            let Some(name) = first.and_then(Entry::spanned) else { return };
            let Some(when) = node.child("when") else {
                cx.error(ids::MISSING_PROPERTY, node.place(), "`deny` without a condition", "add `{ when \"…\" }`");
                return;
            };
            let Some(when) = when.arg(0).and_then(|entry| condition(entry, cx)) else { return };
            policies.denials.insert(name.value.clone(), Denial { name, when });
        }
        "window" => {
            if let Some(window) = window(node, cx) {
                policies.windows.insert(window.name.value.clone(), window);
            }
        }
        "approval" => {
            let (Some(verbs), Some(by)) = (node.prop("verbs").and_then(strings), node.prop("by")) else { return };
            approvers(by, cx);
            let Some(by) = strings(by) else { return };
            policies.approvals.push(Spanned::new(Approval { verbs, by }, place));
        }
        "on-node-lost" => {
            let lost = node.prop("after").and_then(|e| e.get(values::duration)).and_then(|after| {
                let moves = match node.prop("move")?.text()? {
                    "stateless" => MoveOnLoss::Stateless,
                    "all" => MoveOnLoss::All,
                    "none" => MoveOnLoss::None,
                    _ => return None,
                };
                Some(Spanned::new(OnNodeLost { after: after.value, moves }, place))
            });
            once(&mut policies.on_node_lost, lost, "on-node-lost", cx);
        }
        "spot" => once(&mut policies.spot_hedge, node.prop("hedge").and_then(Entry::whole), "spot", cx),
        "threshold" => {
            once(&mut policies.move_threshold, node.prop("move").and_then(|e| e.get(values::percent)), "threshold", cx)
        }
        "on-pending" => {
            let what = first.and_then(|entry| {
                let what = match entry.text()? {
                    "apply" => OnPending::Apply,
                    "report" => OnPending::Report,
                    _ => return None,
                };
                Some(Spanned::new(what, place))
            });
            once(&mut policies.on_pending, what, "on-pending", cx);
        }
        "on-drift" => {
            let what = first.and_then(|entry| Some(Spanned::new(OnDrift::parse(entry.text()?)?, place)));
            once(&mut policies.on_drift, what, "on-drift", cx);
        }
        "on-decay" => {
            let what = first.and_then(|entry| Some(Spanned::new(OnDrift::parse(entry.text()?)?, place)));
            once(&mut policies.on_decay, what, "on-decay", cx);
        }
        _ => {}
    }
}

/// A condition; what is wrong with it is shown where it is, if the text is written plainly.
fn condition(entry: &Entry, cx: &mut Context<'_>) -> Option<Spanned<Condition>> {
    let written = entry.spanned()?;
    match condition::parse(&written.value) {
        Ok(condition) => Some(Spanned::new(condition, written.place)),
        Err(fault) => {
            let mut place = written.place;
            let plain =
                place.line == place.end_line && place.end_column - place.column == written.value.chars().count() + 2;
            if plain {
                let begin = place.column + 1;
                (place.column, place.end_column) =
                    (begin + fault.at.start, begin + fault.at.end.max(fault.at.start + 1));
            }
            cx.error(fault.wrong.id, &place, fault.wrong.message, fault.wrong.hint);
            None
        }
    }
}

/// Groups that approvals name must exist.
pub(super) fn approvers(entry: &Entry, cx: &mut Context<'_>) {
    for who in entry.get(values::list).map(|list| list.value).unwrap_or_default() {
        if let Some(group) = who.strip_prefix('@')
            && !group.contains('@')
        {
            cx.refer("group", &Spanned::new(group.to_owned(), entry.at().clone()));
        }
    }
}

fn quota(node: &Node, policies: &mut Policies, cx: &mut Context<'_>) {
    let Some(name) = node.arg(0).and_then(Entry::spanned) else { return };
    let accelerators = node.prop("accelerators").and_then(Entry::whole).map(|count| count.value);
    let vram = node.prop("vram").and_then(|entry| entry.get(values::bytes)).map(|bytes| bytes.value);
    if node.prop("accelerators").is_none() && node.prop("vram").is_none() {
        cx.error(
            ids::MISSING_PROPERTY,
            node.place(),
            "`quota` without a limit",
            "write `accelerators=…` or `vram=\"…\"`",
        );
    }
    let (Some(label), Some(is)) =
        (node.prop("label").and_then(Entry::text), node.prop("is").and_then(|e| e.get(values::scalar)))
    else {
        return;
    };
    policies
        .quotas
        .insert(name.value.clone(), Quota { name, label: label.to_owned(), is: is.value, accelerators, vram });
}

fn window(node: &Node, cx: &mut Context<'_>) -> Option<Window> {
    let zone = node.prop("zone")?.spanned()?;
    let (from, to) = (node.prop("from")?.get(values::time_of_day)?, node.prop("to")?.get(values::time_of_day)?);
    if from.value == to.value {
        cx.error_about(
            ids::OUT_OF_RANGE,
            &to.place,
            "a window that is empty",
            "a window over midnight goes from \"22:00\" to \"06:00\"",
            (&from.place, "its begin"),
        );
    }
    Some(Window {
        name: node.arg(0)?.spanned()?,
        deny: strings(node.prop("deny")?)?,
        days: node.prop("days").and_then(|entry| entry.get(values::days)).map(|days| days.value),
        from: from.value,
        to: to.value,
        zone,
    })
}

/// Puts what has no order into one.
pub(super) fn finish(policies: &mut Policies, cx: &Context<'_>) {
    policies.priorities = cx.priorities.clone();
    policies.protect.sort_by(|a, b| a.value.cmp(&b.value));
    policies.approvals.sort_by(|a, b| (&a.value.verbs, &a.value.by).cmp(&(&b.value.verbs, &b.value.by)));
}
