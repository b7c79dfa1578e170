//! Weights that must be brought before something can start, and what a step will cost.

use std::collections::{BTreeMap, BTreeSet};

use super::build::summary;
use super::diff::{Difference, Draft};
use super::{Because, FetchFrom, Observed, Plan, PlanInput, PlannedFetch, PlannedInstance, Step, Verb, route};
use crate::base::EngineKind;
use crate::inventory::{FetchSpec, HubFiles, NodeFacts};
use crate::placement::{Candidate, Origin};

/// Bytes per second that a load is estimated with where nothing was measured.
const LOAD_BYTES_PER_S: u64 = 500_000_000;
/// Start of a process and its runtime, whatever it loads.
const START_MS: u64 = 5_000;

/// Adds one fetch per node and revision that is not complete there, and makes its readers wait for it.
/// `used` are the candidates of the planned instances.
pub(super) fn add(
    drafts: &mut Vec<Draft>,
    difference: &Difference,
    planned: &[PlannedInstance],
    used: &[&Candidate],
    input: &PlanInput<'_>,
) {
    let mut readers: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for (index, instance) in planned.iter().enumerate() {
        // A worker is sent what it holds.
        if instance.is_worker() || difference.out_of_sight.contains(&instance.instance) {
            continue;
        }
        let facts = input.inventory.node(&instance.node);
        if difference.unknown.contains(&index) || !wanted(used[index], facts, difference.unchanged.contains(&index)) {
            continue;
        }
        readers.entry((instance.node.clone(), used[index].revision.clone())).or_default().push(index);
    }
    // The drafts that result in each instance.
    let mut results: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if let (Verb::Start | Verb::Change | Verb::Move | Verb::Restart, Some(new)) = (draft.step.verb, draft.new) {
            results.entry(new).or_default().push(index);
        }
    }
    for ((node, _), instances) in readers {
        let consumers: BTreeSet<usize> =
            instances.iter().filter_map(|new| results.get(new)).flatten().copied().collect();
        let Some(first) = instances.first().copied() else { continue };
        let because = consumers.first().map_or(Because::Drift, |index| drafts[*index].step.because);
        let fetch = drafts.len();
        drafts.push(Draft {
            step: step(&planned[first], used[first], &node, because, input),
            old: None,
            new: None,
            needs: BTreeSet::new(),
            part: None,
        });
        for consumer in consumers {
            drafts[consumer].needs.insert(fetch);
            // What makes room for a newcomer goes only once the newcomer's weights are there.
            for stop in drafts[consumer].needs.clone() {
                let step = &drafts[stop].step;
                if step.verb == Verb::Stop && step.because != Because::Removed {
                    drafts[stop].needs.insert(fetch);
                }
            }
        }
    }
}

/// The same plan with nothing but its fetches: weights come, nothing starts or stops.
pub fn only_fetches(plan: &Plan) -> Plan {
    let mut only = plan.clone();
    only.steps.retain(|step| step.verb == Verb::Fetch);
    let renumbered: BTreeMap<u32, u32> = only.steps.iter().zip(1..).map(|(step, id)| (step.id, id)).collect();
    for step in &mut only.steps {
        step.id = renumbered[&step.id];
        step.after = step.after.iter().filter_map(|id| renumbered.get(id).copied()).collect();
    }
    only.summary = summary(&only, plan.summary.unchanged);
    only
}

/// Whether a candidate's files are not all on the node. For an instance that runs, an inventory that was written by
/// hand is no proof that they are missing.
fn wanted(candidate: &Candidate, facts: Option<&NodeFacts>, runs: bool) -> bool {
    if matches!(candidate.origin, Origin::OnNode { .. }) {
        return false;
    }
    let Some(facts) = facts else { return true };
    let complete = facts.weights.iter().any(|weights| weights.revision == candidate.revision && weights.complete);
    let believed = runs && facts.agent.is_none();
    !(complete || believed)
}

/// Whether files are named by an index and not there: the plan can be looked at, not carried out.
pub(super) fn incomplete(candidate: &Candidate) -> bool {
    matches!(candidate.origin, Origin::Controller { .. })
        && candidate.files.iter().any(|file| file.sha256.is_none() && file.size_bytes == 0)
}

/// Bytes of a candidate's files; those that are not there are counted by the tensors that they hold.
pub(super) fn size(candidate: &Candidate) -> u64 {
    let known = candidate.files.iter().map(|file| file.size_bytes).fold(0, u64::saturating_add);
    if incomplete(candidate) {
        known.max(candidate.variant.tensors.total_bytes)
    } else {
        known.max(candidate.variant.download_bytes)
    }
}

fn step(
    instance: &PlannedInstance,
    candidate: &Candidate,
    node: &str,
    because: Because,
    input: &PlanInput<'_>,
) -> Step {
    let folder = instance.spec.weights.first().map(|weights| weights.folder.clone()).unwrap_or_default();
    let fetch = match &candidate.origin {
        Origin::Controller { folder: from } => Some(FetchFrom::Folder(from.clone())),
        Origin::Hub { repository, commit } => {
            let (repository, commit) = (repository.clone(), commit.clone());
            Some(route::from_hub(HubFiles { endpoint: input.hub.to_owned(), repository, commit }, node, input))
        }
        Origin::OnNode { .. } => None,
    };
    let route = fetch.as_ref().map(FetchFrom::route);
    let fetch = fetch.map(|from| PlannedFetch {
        from,
        fetch: FetchSpec {
            source: candidate.source.clone(),
            revision: candidate.revision.clone(),
            folder,
            files: candidate.files.clone(),
        },
        limit_bytes_per_s: None,
    });
    let lost = if because == Because::Drift { "; files are missing" } else { "" };
    // It is among the files only where it is loaded.
    let projector = candidate.projector.as_ref().filter(|projector| candidate.files.contains(projector));
    let projector = projector.map_or(String::new(), |file| {
        format!(", and the vision projector {}", file.name.rsplit('/').next().unwrap_or_default())
    });
    Step {
        id: 0,
        verb: Verb::Fetch,
        model: instance.model.clone(),
        replica: instance.replica,
        instance: None,
        node: node.to_owned(),
        from_node: None,
        because,
        detail: format!(
            "{}/{} reads {} of {}{projector}{lost}",
            instance.model, instance.replica, candidate.label, candidate.source
        ),
        after: Vec::new(),
        from_instance: None,
        route,
        download_bytes: size(candidate),
        estimated_ms: None,
        downtime_ms: 0,
        sessions: 0,
        state_bytes: 0,
        interrupts: false,
        fetch,
        confirm: None,
    }
}

/// Fills in what steps cost: how long a start takes, and how long a replica is away.
pub(super) fn estimate(drafts: &mut [Draft], planned: &[PlannedInstance], used: &[&Candidate], observed: &[Observed]) {
    let loads = Loads::of(observed);
    let lives: Vec<bool> = drafts.iter().map(|d| d.old.is_some_and(|old| observed[old].alive)).collect();
    for index in 0..drafts.len() {
        let Some(new) = drafts[index].new else { continue };
        let step = &drafts[index].step;
        if step.verb == Verb::Adopt {
            drafts[index].step.estimated_ms = Some(0);
            continue;
        }
        // A worker only has to listen.
        let load = if planned[new].is_worker() { START_MS } else { loads.of_instance(&planned[new], used[new]) };
        // The start of a split move or change: its replica is away until it answers.
        let split = step.verb == Verb::Start
            && drafts[index].needs.iter().any(|need| {
                let stop = &drafts[*need];
                stop.step.verb == Verb::Stop
                    && lives[*need]
                    && (&stop.step.model, stop.step.replica) == (&step.model, step.replica)
            });
        let away = step.interrupts || split;
        let step = &mut drafts[index].step;
        step.estimated_ms = Some(load);
        step.downtime_ms = if away { load } else { 0 };
        step.route = Some("present".to_owned());
    }
}

/// How long loads took.
struct Loads<'a> {
    /// By specification.
    exact: BTreeMap<&'a str, u64>,
    /// By model, variant, engine and number of accelerators.
    near: BTreeMap<(&'a str, &'a str, EngineKind, usize), u64>,
}

impl<'a> Loads<'a> {
    fn of(observed: &'a [Observed]) -> Self {
        let mut this = Self { exact: BTreeMap::new(), near: BTreeMap::new() };
        for (o, load) in observed.iter().filter_map(|o| Some((o, o.load_ms?))) {
            this.exact.entry(&o.specification).or_insert(load);
            this.near.entry((&o.model, &o.variant, o.engine, o.accelerators.len())).or_insert(load);
        }
        this
    }

    /// Measured where this specification, or at least this model and variant, has been loaded before.
    fn of_instance(&self, instance: &PlannedInstance, candidate: &Candidate) -> u64 {
        let like = (instance.model.as_str(), instance.variant.as_str(), instance.engine, instance.accelerators.len());
        let known = self.exact.get(instance.specification.as_str()).or_else(|| self.near.get(&like));
        known.copied().unwrap_or_else(|| START_MS + size(candidate).saturating_mul(1_000) / LOAD_BYTES_PER_S)
    }
}
