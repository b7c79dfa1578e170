//! Why a step is there, in a word of the closed list and in a sentence that names the place.

use std::collections::{BTreeMap, BTreeSet};

use super::input::labels_of;
use super::{Because, Observed, PlanInput, PlannedInstance};
use crate::base::Place;
use crate::config::{LabelIs, Model};
use crate::engine::names_internal_port;
use crate::inventory::InstanceSpec;
use crate::placement::{NodeSupply, Victim, denied};

/// What reasons are found in.
pub(super) struct Situation<'a> {
    input: &'a PlanInput<'a>,
    /// What runs, by model.
    observed: BTreeMap<&'a str, Vec<&'a Observed>>,
    /// The first that runs of a replica.
    replicas: BTreeMap<(&'a str, u32), &'a Observed>,
    /// What shall run, by model and replica.
    successors: BTreeMap<(&'a str, u32), &'a PlannedInstance>,
    /// What shall run and does not yet, by node.
    newcomers: BTreeMap<&'a str, Vec<&'a PlannedInstance>>,
    /// What loses its place to higher ranks, by instance and node.
    victims: BTreeMap<(&'a str, &'a str), &'a Victim>,
    /// Nodes that are like others, with those.
    likes: BTreeMap<&'a str, &'a [String]>,
}

impl<'a> Situation<'a> {
    /// Of what shall run and what runs.
    pub fn of(input: &'a PlanInput<'a>, planned: &'a [PlannedInstance], observed: &'a [Observed]) -> Self {
        let mut this = Self {
            input,
            observed: BTreeMap::new(),
            replicas: BTreeMap::new(),
            successors: BTreeMap::new(),
            newcomers: BTreeMap::new(),
            victims: BTreeMap::new(),
            likes: input.placement.likes(),
        };
        for victim in &input.placement.victims {
            this.victims.entry((&victim.instance, &victim.node)).or_insert(victim);
        }
        for o in observed.iter().filter(|o| !o.is_worker()) {
            this.observed.entry(&o.model).or_default().push(o);
            this.replicas.entry((&o.model, o.replica)).or_insert(o);
        }
        let runs: BTreeSet<(&str, &str)> = observed.iter().map(|o| (o.instance.as_str(), o.node.as_str())).collect();
        for instance in planned {
            if !instance.is_worker() {
                this.successors.entry((&instance.model, instance.replica)).or_insert(instance);
            }
            if !runs.contains(&(instance.instance.as_str(), instance.node.as_str())) {
                this.newcomers.entry(&instance.node).or_default().push(instance);
            }
        }
        this
    }

    /// How many of a model run.
    fn running(&self, model: &str) -> usize {
        self.observed.get(model).map_or(0, Vec::len)
    }

    fn model(&self, name: &str) -> Option<&Model> {
        self.input.desired.models.get(name)
    }

    /// Why a replica starts that has run nowhere.
    pub fn start(&self, instance: &PlannedInstance) -> (Because, String) {
        let Some(model) = self.model(&instance.model) else {
            return (Because::Added, "declared".to_owned());
        };
        let place = model.name.place.short();
        let elsewhere = self.replicas.get(&(instance.model.as_str(), instance.replica));
        if let Some(old) = elsewhere.filter(|old| !self.input.desired.nodes.contains_key(&old.node)) {
            return (Because::Config, format!("node \"{}\" of this replica is no longer in the config", old.node));
        }
        let others = self.running(&instance.model);
        if others == 0 {
            return (Because::Added, format!("{place} model \"{}\"", instance.model));
        }
        (Because::Config, format!("{place} replicas {others} -> {}", model.replicas.max))
    }

    /// Why a specification changes in place.
    pub fn change(&self, old: &Observed, new: &PlannedInstance) -> (Because, String) {
        let model = self.model(&new.model);
        let place = |of: Option<&Place>| of.or(model.map(|m| &m.name.place)).map(Place::short).unwrap_or_default();
        let said = |place: String, words: String| if place.is_empty() { words } else { format!("{place} {words}") };
        if old.engine != new.engine {
            let at = place(model.and_then(|m| m.engines.first()).map(|engine| &engine.place));
            return (Because::Config, said(at, format!("engine {} -> {}", old.engine, new.engine)));
        }
        if old.variant != new.variant {
            return (Because::Variant, format!("variant {} -> {}: {}", old.variant, new.variant, new.because));
        }
        let Some(spec) = &old.spec else {
            return (Because::Config, said(place(None), "another specification".to_owned()));
        };
        if let (Some(was), Some(is)) = (revision(spec), revision(&new.spec))
            && was != is
        {
            return (Because::Lock, self.other_weights(was, is));
        }
        let mut words = Vec::new();
        let mut at = None;
        for (flag, was, is) in changed_flags(&spec.argv, &new.argv) {
            let (word, found) = named(&flag, model);
            at = at.or(found);
            let bare = |value: Option<String>| value.map(|v| v.trim_start_matches("serve ").to_owned());
            words.push(match (bare(was), bare(is)) {
                (Some(was), Some(is)) => format!("{word} {was} -> {is}"),
                (None, Some(is)) if is.is_empty() => format!("{word} added"),
                (None, Some(is)) => format!("{word} {is} added"),
                (Some(_), None) | (None, None) => format!("{word} removed"),
            });
        }
        for (name, change) in changed_keys(&spec.env, &new.env) {
            // Values of an environment may be anything: only names are shown.
            words.push(format!("env {name} {change}"));
        }
        let program = spec.argv.first().zip(new.argv.first()).filter(|(was, is)| was != is);
        if let Some((was, is)) = program {
            words.push(format!("program {was} -> {is}"));
        }
        if words.is_empty() {
            // Nothing that is passed to the engine differs, so it is what lies behind it.
            let unpinned = spec.weights.first().filter(|weights| weights.revision.is_none());
            return match unpinned {
                Some(weights) => {
                    (Because::Lock, format!("the files in {} or the engine's version changed", weights.folder))
                }
                None => (Because::Config, said(place(None), "another specification".to_owned())),
            };
        }
        (Because::Config, said(place(at), words.join(", ")))
    }

    /// Other weights under the same name: the commits of flock.lock where both are of the hub, else the revisions.
    fn other_weights(&self, was: &str, is: &str) -> String {
        let found = self.input.inventory.nodes.iter().flat_map(|node| &node.weights);
        let old = found.into_iter().find(|weights| weights.revision == was).and_then(|weights| pin(&weights.source));
        let candidates = self.input.candidates.values().flatten().flatten();
        let new = candidates.into_iter().find(|one| one.revision == is).and_then(|one| pin(&one.source));
        match (old, new) {
            (Some((old, was)), Some((new, is))) if old == new => format!("flock.lock: {new} {was} -> {is}"),
            (Some((old, was)), Some((new, is))) => format!("flock.lock: {old} {was} -> {new} {is}"),
            (None, Some((new, is))) => format!("flock.lock: weights {} -> {new} {is}", short(was)),
            (_, None) => format!("weights {} -> {}", short(was), short(is)),
        }
    }

    /// Why a replica moves.
    pub fn moving(&self, old: &Observed, new: &PlannedInstance) -> (Because, String) {
        if let Some(found) = self.place_lost(old) {
            return found;
        }
        if let Some(found) = self.taken_by(old, &new.model) {
            return found;
        }
        if old.variant != new.variant {
            return (Because::Variant, format!("variant {} -> {}: {}", old.variant, new.variant, new.because));
        }
        if old.accelerators.len() != new.accelerators.len() || old.engine != new.engine {
            return (Because::Config, format!("another shape: {}", new.because));
        }
        (Because::Better, new.because.clone())
    }

    /// Why an instance stops that nothing replaces.
    pub fn stop(&self, old: &Observed) -> (Because, String) {
        let Some(model) = self.model(&old.model) else {
            return (Because::Removed, format!("model \"{}\" is no longer in the config", old.model));
        };
        let place = model.name.place.short();
        if let Some(successor) = self.successors.get(&(old.model.as_str(), old.replica)) {
            if !self.input.desired.nodes.contains_key(&old.node) {
                return (Because::Removed, format!("node \"{}\" is no longer in the config", old.node));
            }
            return (Because::Config, format!("a second copy of the replica that runs on `{}`", successor.node));
        }
        if !self.input.desired.nodes.contains_key(&old.node) {
            return (Because::Removed, format!("node \"{}\" is no longer in the config", old.node));
        }
        if old.replica >= model.replicas.max {
            let running = self.running(&old.model);
            return (Because::Config, format!("{place} replicas {running} -> {}", model.replicas.max));
        }
        if let Some(found) = self.place_lost(old) {
            return found;
        }
        if let Some(found) = self.taken_by(old, &old.model) {
            return found;
        }
        let why = self.input.placement.unplaced.iter().find(|u| u.model == old.model);
        let like = |node: &str| self.likes.get(node).map(|names| names.as_ptr());
        let own = like(&old.node);
        let here = |r: &&crate::placement::Reason| {
            r.node == old.node || r.node == "*" || (own.is_some() && like(&r.node) == own)
        };
        match why.and_then(|u| u.reasons.iter().find(here)) {
            Some(reason) if matches!(reason.constraint.as_str(), "quota" | "deny") => {
                (Because::Policy, reason.text.clone())
            }
            Some(reason) => (Because::Config, format!("{place} no longer fits here: {}", reason.text)),
            None => (Because::Config, format!("{place} has no place any more")),
        }
    }

    /// Whether an instance's place can no longer be used.
    fn place_lost(&self, old: &Observed) -> Option<(Because, String)> {
        let configured = self.input.desired.nodes.get(&old.node)?;
        if let Some(facts) = self.input.inventory.node(&old.node).filter(|facts| facts.reachable) {
            for uuid in &old.accelerators {
                match facts.accelerator(uuid) {
                    None => return Some((Because::Decay, format!("accelerator {uuid} of `{}` is gone", old.node))),
                    Some(device) if !device.healthy => {
                        let why = device.unknown.get("healthy").map_or("unhealthy", String::as_str);
                        let index = device.index;
                        return Some((Because::Decay, format!("accelerator {index} of `{}`: {why}", old.node)));
                    }
                    Some(_) => {}
                }
            }
        }
        if let Some(hold) = &configured.hold {
            return Some((Because::Drain, format!("{} hold \"{}\"", hold.place.short(), hold.value)));
        }
        if let Some(hold) = self.input.inventory.member.holds.iter().find(|hold| hold.node == old.node) {
            return Some((Because::Drain, format!("`{}` is cordoned: {}", hold.node, hold.reason)));
        }
        if let Some(why) = self.denied(old) {
            return Some((Because::Policy, why));
        }
        self.ruled_out(old).map(|why| (Because::Config, why))
    }

    /// Whether a policy denies the place where something runs.
    fn denied(&self, old: &Observed) -> Option<String> {
        let model = self.model(&old.model)?;
        let node = self.input.desired.nodes.get(&old.node)?;
        let candidates = self.input.candidates.get(&old.model).and_then(|found| found.as_ref().ok());
        let gated = candidates.and_then(|list| list.iter().find(|c| c.label == old.variant)).and_then(|c| c.gated);
        let mut labels = self.input.inventory.node(&old.node).map(|facts| facts.labels.clone()).unwrap_or_default();
        labels.extend(node.labels.clone());
        let place = NodeSupply {
            name: old.node.clone(),
            labels,
            spot: node.extras.spot,
            site: node.extras.site.as_ref().map(|site| site.value.clone()),
            ..NodeSupply::default()
        };
        denied(self.input.desired, model, old.engine, &place, gated).map(|found| found.text)
    }

    /// Whether the config no longer lets this model run where it runs.
    fn ruled_out(&self, old: &Observed) -> Option<String> {
        let rules = &self.model(&old.model)?.place;
        let labels = labels_of(self.input.desired, self.input.inventory, &old.node);
        let has =
            |label: &str| if label == "node" { Some(old.node.as_str()) } else { labels.get(label).map(String::as_str) };
        if let Some(require) =
            rules.require.iter().find(|require| has(&require.value.label) != Some(require.value.is.as_str()))
        {
            let LabelIs { label, is } = &require.value;
            let found = has(label).map_or_else(
                || format!("`{}` has no such label", old.node),
                |found| format!("`{}` has `{found}`", old.node),
            );
            return Some(format!("{} `{label}` must be `{is}`, {found}", require.place.short()));
        }
        let on_cpu = old.accelerators.is_empty() && !rules.allow_cpu;
        on_cpu.then(|| {
            format!(
                "{} no longer allows the CPU",
                self.model(&old.model).map(|model| model.name.place.short()).unwrap_or_default()
            )
        })
    }

    /// Whether a newcomer of a higher rank has the place.
    fn taken_by(&self, old: &Observed, model: &str) -> Option<(Because, String)> {
        let rank = |name: &str| self.model(name).map_or(0, |m| m.priority.rank);
        let own = rank(model);
        let newcomers = self.newcomers.get(old.node.as_str()).into_iter().flatten();
        let newcomer = newcomers
            .filter(|p| p.model != model && rank(&p.model) > own)
            .filter(|p| if old.accelerators.is_empty() { p.accelerators.is_empty() } else { shares(p, old) })
            .max_by(|a, b| rank(&a.model).cmp(&rank(&b.model)).then_with(|| b.instance.cmp(&a.instance)))?;
        let text =
            format!("`{}` (rank {}) needs the place, `{model}` has rank {own}", newcomer.model, rank(&newcomer.model));
        let known = self.victims.get(&(old.instance.as_str(), old.node.as_str()));
        let text = known.map_or(text.clone(), |victim| format!("{text}; {}", victim.why));
        Some((Because::Preempted, text))
    }
}

fn shares(planned: &PlannedInstance, old: &Observed) -> bool {
    planned.accelerators.iter().any(|uuid| old.accelerators.contains(uuid))
}

fn revision(spec: &InstanceSpec) -> Option<&str> {
    spec.weights.first().and_then(|weights| weights.revision.as_deref())
}

/// Repository and commit of `hf:owner/name@commit`.
fn pin(source: &str) -> Option<(&str, String)> {
    let (repository, commit) = source.strip_prefix("hf:")?.split_once('@')?;
    Some((repository, commit.chars().take(10).collect()))
}

fn short(revision: &str) -> String {
    revision.trim_start_matches("sha256:").chars().take(12).collect()
}

/// Flags whose value follows from ports and memory figures: they are no part of the specification.
const FOLLOWS: &[&str] =
    &["--port", "--rpc", "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--mem-fraction-static"];

type FlagChange = (String, Option<String>, Option<String>);

/// Flags that differ between two argument vectors, with both values.
fn changed_flags(was: &[String], is: &[String]) -> Vec<FlagChange> {
    let (was, is) = (per_request(flags(was)), per_request(flags(is)));
    let names: std::collections::BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    names
        .into_iter()
        .filter(|name| !FOLLOWS.contains(&name.as_str()) && !names_internal_port(name))
        .filter(|name| was.get(*name) != is.get(*name))
        .map(|name| (name.clone(), was.get(name).cloned(), is.get(name).cloned()))
        .collect()
}

/// llama.cpp is given the tokens of all requests together; the config says how many each may have.
fn per_request(mut flags: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let number = |flags: &BTreeMap<String, String>, flag| flags.get(flag).and_then(|value| value.parse::<u64>().ok());
    if let (Some(all), Some(requests)) = (number(&flags, "-c"), number(&flags, "-np").filter(|n| *n > 0)) {
        flags.insert("-c".to_owned(), (all / requests).to_string());
    }
    flags
}

/// Arguments by flag; a flag without a value has an empty one, words before the first flag have the empty flag.
fn flags(argv: &[String]) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut last = Some(String::new());
    for word in argv.iter().skip(1) {
        let is_flag = word.starts_with('-') && !word[1..].starts_with(|c: char| c.is_ascii_digit());
        match (&last, is_flag) {
            (_, true) => {
                let (name, value) = word.split_once('=').unwrap_or((word, ""));
                found.entry(name.to_owned()).or_insert_with(|| value.to_owned());
                last = Some(name.to_owned());
            }
            (Some(name), false) => {
                let value = found.entry(name.clone()).or_default();
                if !value.is_empty() {
                    value.push(' ');
                }
                value.push_str(word);
            }
            (None, false) => {}
        }
    }
    found
}

fn changed_keys(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> Vec<(String, &'static str)> {
    let names: std::collections::BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    names
        .into_iter()
        .filter(|name| !names_internal_port(name))
        .filter_map(|name| match (was.get(name), is.get(name)) {
            (Some(a), Some(b)) if a != b => Some((name.clone(), "changed")),
            (None, Some(_)) => Some((name.clone(), "added")),
            (Some(_), None) => Some((name.clone(), "removed")),
            _ => None,
        })
        .collect()
}

/// What people call a flag, and where the config says it.
fn named<'a>(flag: &str, model: Option<&'a Model>) -> (String, Option<&'a Place>) {
    let context = || model.and_then(|m| m.context.as_ref()).map(|value| &value.place);
    let source = || model.and_then(|m| m.source.as_ref()).map(|value| &value.place);
    let concurrency = || model.map(|m| &m.concurrency.place);
    match flag {
        "" | "--model" | "--model-path" => ("weights".to_owned(), source()),
        "-c" | "--max-model-len" | "--context-length" => ("context".to_owned(), context()),
        "-np" | "--parallel" | "--max-num-seqs" | "--max-running-requests" => ("concurrency".to_owned(), concurrency()),
        "--kv-cache-dtype" | "-ctk" | "-ctv" | "--cache-type-k" | "--cache-type-v" => {
            ("kv-dtype".to_owned(), model.and_then(|m| m.kv_dtype.as_ref()).map(|value| &value.place))
        }
        "--tensor-parallel-size" | "--tp" => ("tensor parallel".to_owned(), None),
        other => {
            let argument = model.and_then(|m| m.arguments.iter().find(|a| a.value.0 == other));
            (other.to_owned(), argument.map(|a| &a.place))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn flags_are_compared_by_name_and_memory_figures_are_not() {
        let was = words("vllm serve /w --port {port} --max-model-len 16384 --gpu-memory-utilization 0.80 --old");
        let is = words("vllm serve /w --port 1 --max-model-len=32768 --gpu-memory-utilization 0.90 --temp -1");
        assert_eq!(
            changed_flags(&was, &is),
            [
                ("--max-model-len".into(), Some("16384".into()), Some("32768".into())),
                ("--old".into(), Some(String::new()), None),
                ("--temp".into(), None, Some("-1".into())),
            ]
        );
        let llama = |text: &str| words(&format!("llama-server --model /w/a.gguf {text}"));
        let changes = changed_flags(&llama("-c 8192 -np 2 --slots"), &llama("-c 16384 -np 4 --slots"));
        assert_eq!(changes, [("-np".into(), Some("2".into()), Some("4".into()))]);
        let changes = changed_flags(&words("vllm serve /w/a --x"), &words("vllm serve /w/b --x"));
        assert_eq!(changes, [(String::new(), Some("serve /w/a".into()), Some("serve /w/b".into()))]);
    }
}
