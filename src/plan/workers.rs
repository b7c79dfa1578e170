//! Instances over several nodes: the process that serves, and on every further node a worker that holds some of its
//! layers. A worker is planned, started and stopped like an instance of its own, before what it works for and after it.
//!
//! A worker's id follows from the instance's, so that another split has other workers; none of it changes in place. What
//! serves is told the workers' ports, so it starts anew where one of them does.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::diff::{Difference, Draft};
use super::specify::planned_memory;
use super::{Because, HelperProcess, Observed, PlanInput, PlannedInstance, Verb, launch};
use crate::base::{Digest, EngineKind};
use crate::engine::{device_environment, tell_workers, worker_argv, worker_endpoint};
use crate::inventory::{InstanceSpec, PartOf};
use crate::placement::{Elsewhere, Placed};

/// How long a worker may take until it listens.
const READY_MS: u64 = 60_000;

/// All nodes of a placed replica, that which serves first.
pub(super) fn nodes(placed: &Placed) -> Vec<String> {
    std::iter::once(&placed.node).chain(placed.elsewhere.iter().map(|part| &part.node)).cloned().collect()
}

/// What the instance of a placed replica is a part of; `None` where it is on one node.
pub(super) fn part(placed: &Placed, id: &str) -> Option<PartOf> {
    (!placed.elsewhere.is_empty()).then(|| PartOf { instance: id.to_owned(), nodes: nodes(placed) })
}

#[derive(Serialize)]
struct Identity<'a> {
    works_for: &'a str,
    node: &'a str,
}

/// The workers of an instance; their ports come later.
pub(super) fn specify(placed: &Placed, serving: &PlannedInstance, input: &PlanInput<'_>) -> Vec<PlannedInstance> {
    placed.elsewhere.iter().filter_map(|part| one(placed, part, serving, input)).collect()
}

fn one(placed: &Placed, part: &Elsewhere, serving: &PlannedInstance, input: &PlanInput<'_>) -> Option<PlannedInstance> {
    let (program, address) = part.worker.as_ref()?;
    let desired = input.desired;
    let engine = desired.engines.get(&placed.engine);
    let mut env = desired.nodes.get(&part.node).map(|node| node.extras.env.clone()).unwrap_or_default();
    env.extend(engine.map(|engine| engine.env.clone()).unwrap_or_default());
    env.extend(desired.models.get(&placed.model).map(|model| model.env.clone()).unwrap_or_default());
    let (vendor, devices) = launch::visible(&part.accelerators, input.inventory.node(&part.node));
    env.extend(device_environment(placed.engine, &vendor, &devices));
    let id = Digest::of_json(&Identity { works_for: &serving.instance, node: &part.node }).short(12).to_owned();
    let argv = worker_argv(program, address);
    let memory = planned_memory(&part.accelerators, &part.per_accelerator, &part.host);
    let spec = InstanceSpec {
        instance: id.clone(),
        accelerators: part.accelerators.clone(),
        argv: argv.clone(),
        env: env.clone(),
        key_env: None,
        internal_ports: Vec::new(),
        weights: Vec::new(),
        planned_bytes: memory.per_accelerator.iter().map(|bytes| bytes.total_bytes).collect(),
        planned_host_bytes: memory.host.total_bytes,
        ready_timeout_ms: READY_MS,
        unresponsive_after_ms: 0,
        container: None,
        sized_for: None,
        ..serving.spec.as_ref().clone()
    };
    Some(PlannedInstance {
        instance: id,
        part: Some(format!("rpc:{}", part.node)),
        node: part.node.clone(),
        accelerators: part.accelerators.clone(),
        layers: Vec::new(),
        host_layers: 0,
        vision: None,
        memory,
        argv,
        env,
        because: format!("holds layers of `{}` on `{}`", serving.model, serving.node),
        better: Vec::new(),
        spec: Box::new(spec),
        ..serving.clone()
    })
}

/// The parts of an instance, by its id.
fn by_instance(planned: &[PlannedInstance]) -> BTreeMap<&str, Vec<usize>> {
    let mut found: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, instance) in planned.iter().enumerate() {
        if let Some(part) = &instance.spec.part {
            found.entry(&part.instance).or_default().push(index);
        }
    }
    found
}

/// These, and all other parts of the instances that they belong to; ascending.
pub(super) fn with_their_parts(planned: &[PlannedInstance], some: &[usize]) -> BTreeSet<usize> {
    let parts = by_instance(planned);
    let whole = |index: &usize| match &planned[*index].spec.part {
        Some(part) => parts.get(part.instance.as_str()).cloned().unwrap_or_default(),
        None => vec![*index],
    };
    some.iter().flat_map(whole).collect()
}

/// Tells what serves where its workers are, once those have their ports.
pub(super) fn tell(planned: &mut [PlannedInstance]) {
    let mut workers: BTreeMap<String, Vec<(HelperProcess, String)>> = BTreeMap::new();
    for instance in planned.iter().filter(|instance| instance.is_worker()) {
        let (Some(part), Some(endpoint)) = (&instance.spec.part, worker_endpoint(&instance.argv, instance.port)) else {
            continue;
        };
        let process = HelperProcess {
            node: instance.node.clone(),
            argv: instance.argv.clone(),
            env: instance.env.clone(),
            ports: vec![instance.port],
        };
        workers.entry(part.instance.clone()).or_default().push((process, endpoint));
    }
    for instance in planned.iter_mut().filter(|instance| instance.engine == EngineKind::LlamaCpp) {
        let Some(found) = workers.remove(&instance.instance) else { continue };
        let (processes, endpoints): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        tell_workers(&mut instance.argv, &endpoints);
        instance.spec.argv.clone_from(&instance.argv);
        instance.processes = processes;
    }
}

/// What serves and runs as it should starts anew where a worker of it does.
pub(super) fn serve_anew(
    difference: &mut Difference,
    planned: &[PlannedInstance],
    observed: &[Observed],
    restart: impl Fn(String, usize, usize) -> Draft,
) {
    let mut anew: BTreeMap<String, String> = BTreeMap::new();
    let mut begins: BTreeSet<String> = BTreeSet::new();
    for draft in difference.drafts.iter().filter(|draft| matches!(draft.step.verb, Verb::Start | Verb::Restart)) {
        match &draft.part {
            Some(part) if draft.is_worker() => {
                anew.insert(part.instance.clone(), draft.step.node.clone());
            }
            Some(part) => {
                begins.insert(part.instance.clone());
            }
            None => {}
        }
    }
    for (new, instance) in planned.iter().enumerate().filter(|(_, instance)| !instance.is_worker()) {
        let Some(node) = anew.get(&instance.instance).filter(|_| !begins.contains(&instance.instance)) else {
            continue;
        };
        let old = observed.iter().position(|o| o.instance == instance.instance && o.node == instance.node);
        let Some(old) = old.filter(|old| observed[*old].reachable) else { continue };
        difference.unchanged.remove(&new);
        difference.drafts.retain(|draft| draft.new != Some(new));
        difference.drafts.push(restart(format!("its worker on `{node}` starts anew"), new, old));
    }
}

/// Why a worker that nothing plans stays: what it works for is on a node that does not answer, and its replica is not
/// to run elsewhere.
pub(super) fn waits(worker: &Observed, planned: &[PlannedInstance], observed: &[Observed]) -> Option<String> {
    let serving = works_for(worker, observed)?;
    let replica = (worker.model.as_str(), worker.replica);
    let elsewhere = planned.iter().any(|p| (p.model.as_str(), p.replica) == replica && p.node != serving.node);
    (!serving.reachable && !elsewhere).then(|| {
        format!("the worker of `{}` on `{}` stays: `{}` does not answer", worker.model, worker.node, serving.node)
    })
}

/// What a worker works for, where that is known to any node.
fn works_for<'o>(worker: &Observed, observed: &'o [Observed]) -> Option<&'o Observed> {
    let part = worker.part.as_ref().filter(|_| worker.is_worker())?;
    observed.iter().find(|o| o.instance == part.instance && !o.is_worker())
}

/// Why an instance over several nodes stays as it is: it serves, and only flock cannot see one of its workers' nodes.
pub(super) fn out_of_sight(serving: &Observed, observed: &[Observed]) -> Option<String> {
    let part = serving.part.as_ref().filter(|_| !serving.is_worker() && serving.reachable && serving.serving())?;
    let of_it = |o: &&Observed| o.is_worker() && o.part.as_ref().is_some_and(|of| of.instance == part.instance);
    let hidden = observed.iter().filter(of_it).find(|worker| !worker.reachable)?;
    Some(format!(
        "`{}` keeps running on `{}`: `{}`, where a worker of it is, cannot be reached from here, and it answers all the same",
        serving.model, serving.node, hidden.node
    ))
}

/// Why an instance over several nodes stays as it was started: by now a node lacks the program for its worker.
pub(super) fn cannot_begin(serving: &Observed, instance: &PlannedInstance) -> Option<String> {
    let part = instance.spec.part.as_ref().filter(|_| !instance.is_worker())?;
    let lacks = instance.processes.len() + 1 < part.nodes.len();
    (lacks && serving.node == instance.node && serving.reachable && serving.serving()).then(|| {
        format!(
            "`{}` keeps running on `{}` as it was started: not each of its nodes has the program for its worker by now",
            serving.model, serving.node
        )
    })
}

/// Why a worker stays: what it works for does.
pub(super) fn of_kept(worker: &Observed, kept: &[(usize, String)], observed: &[Observed]) -> Option<String> {
    let serving = works_for(worker, observed)?;
    let stays = kept.iter().any(|(index, _)| std::ptr::eq(&observed[*index], serving));
    stays.then(|| format!("the worker of `{}` on `{}` stays with it", worker.model, worker.node))
}

/// Why a worker ends: what it works for does, or is gone.
pub(super) fn ends(
    worker: &Observed,
    drafts: &[Draft],
    planned: &[PlannedInstance],
    observed: &[Observed],
) -> Option<(Because, String)> {
    let part = worker.part.as_ref().filter(|_| worker.is_worker())?;
    let stop = drafts
        .iter()
        .find(|draft| draft.step.verb == Verb::Stop && draft.step.instance.as_ref() == Some(&part.instance));
    if let Some(stop) = stop {
        return Some((stop.step.because, format!("{}; this is its worker", stop.step.detail)));
    }
    let alone = !works_for(worker, observed).is_some_and(|serving| serving.reachable)
        && !planned.iter().any(|instance| instance.instance == part.instance);
    alone.then(|| (Because::Drift, format!("the instance of `{}` that it works for is gone", worker.model)))
}

/// What serves starts after its workers, and they stop after it.
pub(super) fn order(drafts: &mut [Draft], observed: &[Observed]) {
    // What cannot be asked to end keeps nobody waiting.
    let away = |draft: &Draft| draft.old.is_some_and(|old| !observed[old].reachable);
    let mut starts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut ends: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        let Some(part) = draft.part.as_ref().filter(|_| !away(draft)) else { continue };
        match draft.step.verb {
            Verb::Start | Verb::Restart | Verb::Adopt if draft.is_worker() => {
                starts.entry(&part.instance).or_default().push(index);
            }
            Verb::Stop if !draft.is_worker() => ends.entry(&part.instance).or_default().push(index),
            _ => {}
        }
    }
    let mut edges: Vec<(usize, usize)> = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        let Some(part) = &draft.part else { continue };
        let before = match (draft.step.verb, draft.is_worker()) {
            (Verb::Start | Verb::Restart | Verb::Adopt, false) => starts.get(part.instance.as_str()),
            (Verb::Stop, true) => ends.get(part.instance.as_str()),
            _ => None,
        };
        edges.extend(before.into_iter().flatten().map(|before| (index, *before)));
    }
    // Never two copies of one replica at a time.
    let mut stops: BTreeMap<(&str, u32), Vec<usize>> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if draft.step.verb == Verb::Stop && !draft.is_worker() && !away(draft) {
            stops.entry((&draft.step.model, draft.step.replica)).or_default().push(index);
        }
    }
    for (index, draft) in drafts.iter().enumerate().filter(|(_, draft)| draft.step.verb == Verb::Start) {
        let same = stops.get(&(draft.step.model.as_str(), draft.step.replica)).into_iter().flatten();
        let before = same.filter(|stop| draft.part.is_some() || drafts[**stop].part.is_some());
        edges.extend(before.map(|before| (index, *before)));
    }
    for (index, before) in edges {
        drafts[index].needs.insert(before);
    }
}

/// Drafts that begin a worker whose instance is not to begin, with the draft of that: it would hold memory for nothing.
pub(super) fn without_serving(drafts: &[Draft], dropped: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let begins = |draft: &Draft| matches!(draft.step.verb, Verb::Start | Verb::Restart);
    let mut serving: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate().filter(|(_, draft)| draft.new.is_some() && !draft.is_worker()) {
        if let Some(part) = &draft.part {
            serving.insert(&part.instance, index);
        }
    }
    let mut found = Vec::new();
    for (index, draft) in drafts.iter().enumerate().filter(|(_, draft)| begins(draft) && draft.is_worker()) {
        let cause = draft.part.as_ref().and_then(|part| serving.get(part.instance.as_str()));
        if let Some(cause) = cause.filter(|cause| dropped(**cause) && !dropped(index)) {
            found.push((index, *cause));
        }
    }
    found
}
