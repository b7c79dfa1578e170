//! What runs well is left as it was started, whatever is found on its node by now.
//!
//! An engine that is found in another folder, or not at all, is no reason to start anything again: only what the config
//! asks for is. What placement keeps at its place although it could not be started anew is not touched at all, and what
//! the config asks of it waits until it can.

use std::collections::BTreeMap;

use super::specify::specify;
use super::{Observed, PlanInput, PlannedInstance};
use crate::config::Desired;
use crate::inventory::{InstanceSpec, NodeFacts};
use crate::placement::{Candidate, Placed};
use crate::sizing::Calibrations;

/// What serves and can be asked, by replica.
pub(super) struct Serving<'o>(BTreeMap<(&'o str, u32), Vec<&'o Observed>>);

impl<'o> Serving<'o> {
    /// Of all that was found.
    pub fn of(observed: &'o [Observed]) -> Self {
        let mut serving: BTreeMap<_, Vec<&Observed>> = BTreeMap::new();
        for o in observed.iter().filter(|o| o.reachable && o.serving()) {
            serving.entry((o.model.as_str(), o.replica)).or_default().push(o);
        }
        Self(serving)
    }

    /// The instance that a placed replica is: the same replica on the same accelerators.
    fn as_placed(&self, placed: &Placed) -> Option<&'o Observed> {
        let own = |o: &&&Observed| {
            (&o.node, o.engine, &o.accelerators) == (&placed.node, placed.engine, &placed.accelerators)
        };
        self.0.get(&(placed.model.as_str(), placed.replica))?.iter().find(own).copied()
    }
}

/// The same replica with the program that it was started with, where the config does not ask for another one; with the
/// remark that says so. `None` where the program makes no difference.
pub(super) fn as_started(
    placed: &Placed,
    instance: &PlannedInstance,
    candidate: &Candidate,
    input: &PlanInput<'_>,
    serving: &Serving<'_>,
    calibrations: &Calibrations,
) -> Option<(PlannedInstance, String)> {
    let old = serving.as_placed(placed).filter(|old| old.specification != instance.specification)?;
    let facts = input.inventory.node(&placed.node);
    let was = started(input.desired, placed, facts?, old).filter(|was| *was != placed.program)?;
    let before = Placed { program: was.clone(), ..placed.clone() };
    let same = specify(&before, candidate, input.desired, facts, calibrations)?;
    let text = format!(
        "`{}` keeps running {was} on `{}`, where {} is found by now: it takes its place with the next start",
        placed.model, placed.node, placed.program
    );
    (same.specification == old.specification).then_some((same, text))
}

/// The program that an instance was started with: the config's, else what its node was told.
fn started(desired: &Desired, placed: &Placed, facts: &NodeFacts, old: &Observed) -> Option<String> {
    let engine = desired.engines.get(&placed.engine);
    if let Some(engine) = engine {
        if engine.extras.container.is_some() || !engine.extras.modules.is_empty() {
            return None;
        }
        let own = engine.paths.iter().find(|path| path.node.as_deref() == Some(placed.node.as_str()));
        if let Some(path) = own.or(engine.paths.iter().find(|path| path.node.is_none())) {
            return Some(crate::base::expand_home(&path.path.value, facts.home.as_deref()));
        }
    }
    old.spec.as_ref()?.argv.first().cloned()
}

/// Leaves what placement holds as it runs: its id, its specification and what its node was told. What is to be said of
/// it, where the config asks for something else.
pub(super) fn left_alone(instance: &mut PlannedInstance, placed: &Placed, serving: &Serving<'_>) -> Option<String> {
    let why = placed.held.as_ref()?;
    let old = serving.as_placed(placed)?;
    let differs = instance.specification != old.specification;
    instance.instance.clone_from(&old.instance);
    instance.specification.clone_from(&old.specification);
    match &old.spec {
        Some(spec) => {
            instance.argv.clone_from(&spec.argv);
            instance.env.clone_from(&spec.env);
            let internal_ports = std::mem::take(&mut instance.spec.internal_ports);
            let port_alternates = instance.port_alternates.clone();
            *instance.spec = InstanceSpec { port: instance.port, port_alternates, internal_ports, ..spec.clone() };
        }
        None => {
            instance.spec.instance.clone_from(&old.instance);
            instance.spec.specification.clone_from(&old.specification);
        }
    }
    differs.then(|| {
        format!(
            "`{}` keeps running on `{}` as it was started, and what the config asks of it by now waits: {why}",
            placed.model, placed.node
        )
    })
}

/// What runs with another version of its engine than is found on its node.
pub(super) fn other_versions(input: &PlanInput<'_>, placed: &[&Placed], serving: &Serving<'_>) -> Vec<String> {
    let told = |placed: &&Placed| {
        let old = serving.as_placed(placed)?;
        let facts = input.inventory.node(&old.node)?;
        let own = facts.instances.iter().find(|facts| facts.instance == old.instance)?;
        let runs = own.measured.as_deref()?.sized_for.engine_version.as_deref()?;
        let found = facts.engines.iter().flatten().find(|e| e.kind == old.engine && e.path == placed.program)?;
        let is = found.version.as_deref().filter(|is| *is != runs && placed.held.is_none())?;
        Some(format!(
            "`{}` keeps running {} {runs} on `{}`, where {is} is found by now: it takes its place with the next start",
            old.model, old.engine, old.node
        ))
    };
    let mut all: Vec<String> = placed.iter().filter_map(told).collect();
    all.sort();
    all.dedup();
    all
}
