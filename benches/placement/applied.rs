//! A cluster after its plan was applied: what was fetched lies there, what was started runs.

use flock::base::InstanceState;
use flock::inventory::{InstanceFacts, InstanceSpec, Inventory, WeightsFound};
use flock::plan::{ObservedSpecs, Plan, Verb};

/// Does what the steps of a first plan say: it only fetches and starts.
pub fn applied(inventory: &Inventory, plan: &Plan) -> (Inventory, ObservedSpecs) {
    let mut after = inventory.clone();
    let mut observed: ObservedSpecs = after.nodes.iter().map(|n| (n.name.clone(), Vec::new())).collect();
    for step in plan.steps.iter().filter(|step| step.verb == Verb::Fetch) {
        let (Ok(node), Some(fetch)) =
            (after.nodes.binary_search_by(|n| n.name.as_str().cmp(&step.node)), step.fetch.as_ref())
        else {
            continue;
        };
        after.nodes[node].weights.push(WeightsFound {
            source: fetch.fetch.source.clone(),
            revision: fetch.fetch.revision.clone(),
            path: Some(fetch.fetch.folder.clone()),
            files: fetch.fetch.files.iter().map(|file| file.name.clone()).collect(),
            size_bytes: step.download_bytes,
            complete: true,
            sha256: None,
            architecture: None,
            variants: Vec::new(),
            problem: None,
        });
    }
    for instance in &plan.instances {
        let Ok(node) = after.nodes.binary_search_by(|n| n.name.as_str().cmp(&instance.node)) else { continue };
        after.nodes[node].instances.push(facts(&instance.spec));
        observed.entry(instance.node.clone()).or_default().push((*instance.spec).clone());
    }
    (after, observed)
}

fn facts(spec: &InstanceSpec) -> InstanceFacts {
    InstanceFacts {
        instance: spec.instance.clone(),
        specification: spec.specification.clone(),
        model: spec.model.clone(),
        replica: spec.replica,
        engine: spec.engine,
        variant: spec.variant.clone(),
        accelerators: spec.accelerators.clone(),
        layers: spec.sized_for.as_ref().map(|sized| sized.layers.clone()).unwrap_or_default(),
        port: spec.port,
        state: InstanceState::Ready,
        running: true,
        pid: Some(1000),
        host_bytes: None,
        last_failure: None,
        starts: 1,
        since: Some("2026-01-02T03:04:05Z".to_owned()),
        live_sessions: 0,
        load_ms: Some(19_200),
        measured: None,
        part: None,
    }
}
