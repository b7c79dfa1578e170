//! A plan for people: what changes, why, what it costs, what is not placed, and what to run next.

use std::collections::{BTreeMap, BTreeSet};

use super::plan_tail::{next_commands, summary};
use super::style::{Ink, Style, clean, pad};
use super::words::{self, about, about_long, bytes_of, count, short_digest};
use crate::base::{format_bytes, format_rate};
use crate::config::Desired;
use crate::inventory::Inventory;
use crate::placement::Unplaced;
use crate::plan::{Blocked, Decay, Deferred, Drift, FetchFrom, Plan, PlannedInstance, Step, Verb};

/// How much of a plan to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Amount {
    /// Names by verb.
    Summary,
    /// What changes; what does not is counted.
    #[default]
    Changes,
    /// Everything, argument vectors included.
    Full,
}

/// What surrounds a plan that is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanView<'a> {
    /// For the names of devices; `None` shows UUIDs.
    pub inventory: Option<&'a Inventory>,
    /// The config that it is made from, for counting its nodes; `None` counts those of the inventory.
    pub desired: Option<&'a Desired>,
    /// How much to show.
    pub amount: Amount,
    /// Whether it is about to be carried out: then nothing is said about how to do that.
    pub applying: bool,
    /// The file that the plan was saved to.
    pub saved_to: Option<&'a str>,
    /// How this flock is called, with its global options; `None` is plain `flock`.
    pub flock: Option<&'a str>,
    /// Nodes without facts that nobody left out (exit 9); `None` takes them from the plan's decay.
    pub missing: Option<&'a BTreeSet<String>>,
    /// The commit that was planned instead of the working tree, as it was asked for.
    pub against: Option<&'a str>,
}

/// A plan as text.
pub fn plan_text(plan: &Plan, view: &PlanView<'_>, style: &Style) -> String {
    let mut out = header(plan, view, style);
    if view.amount != Amount::Summary {
        drift(&mut out, &plan.drift, &plan.decay, style);
        changes(&mut out, plan, view, style);
        super::egress::section(&mut out, plan, style);
        not_placed(&mut out, plan, style);
        blocked(&mut out, plan, style);
        deferred(&mut out, plan, style);
        warnings(&mut out, plan, style);
    }
    if view.amount == Amount::Full {
        unchanged(&mut out, plan, view, style);
        solver(&mut out, plan, style);
    }
    out.push('\n');
    out.push_str(&summary(plan, style));
    out.push_str(&next_commands(plan, view, style));
    out
}

fn header(plan: &Plan, view: &PlanView<'_>, style: &Style) -> String {
    let commit = match &plan.commit {
        Some(commit) => format!("commit {}", commit.get(..10).unwrap_or(commit)),
        None => "no commit".to_owned(),
    };
    let dirty = if plan.dirty { " + changes not committed" } else { "" };
    let mut text = format!(
        "{commit}{dirty}, config {}, facts {}",
        short_digest(&plan.config_digest),
        short_digest(&plan.inventory_digest)
    );
    text.push_str(&known_nodes(plan, view));
    let lead = style.paint(Ink::Heading, &format!("Plan for cluster \"{}\"", plan.cluster));
    let mut out = style.beside(&format!("{lead}  "), &text);
    if let Some(inventory) = view.inventory {
        if let Some(applied) = &inventory.member.applied {
            out.push_str(&style.beside("  ", &format!("last apply: {}", super::records::applied_text(applied))));
        }
        for held in super::status::cordoned(inventory) {
            out.push_str(&style.beside("  ", &super::status::held_text(&held)));
        }
    }
    out
}

/// Of how many nodes the facts are: those of the config, whether or not an inventory has them. One whose accelerators
/// cannot be told is as good as away.
pub(super) fn known_nodes(plan: &Plan, view: &PlanView<'_>) -> String {
    let Some(inventory) = view.inventory else { return String::new() };
    let away: BTreeSet<&str> =
        plan.decay.iter().filter(|d| d.kind == "node_unreachable").map(|d| d.node.as_str()).collect();
    let listed: BTreeSet<&str> = inventory.nodes.iter().map(|node| node.name.as_str()).collect();
    let answered: BTreeSet<&str> =
        inventory.nodes.iter().filter(|node| node.reachable).map(|node| node.name.as_str()).collect();
    let configured: BTreeSet<&str> = match view.desired {
        Some(desired) => desired.nodes.keys().map(String::as_str).collect(),
        None => listed.iter().chain(&away).copied().collect(),
    };
    let known = configured.iter().filter(|node| answered.contains(*node) && !away.contains(*node)).count();
    let others = listed.difference(&configured).count();
    let beside = if others > 0 { format!(", and of {others} that the config lacks") } else { String::new() };
    format!(" of {known}/{} nodes{beside}", configured.len())
}

pub(super) fn drift(out: &mut String, drift: &[Drift], decay: &[Decay], style: &Style) {
    let since = |since: &Option<String>| since.as_ref().map(|at| format!(" (since {at})")).unwrap_or_default();
    if !drift.is_empty() {
        out.push('\n');
        out.push_str(&style.heading(&format!("Drift ({})", drift.len())));
        for entry in drift {
            let lead = format!("  {}  ", pad(&entry.node, 8));
            out.push_str(&style.beside(&lead, &format!("{}{}", clean(&entry.text), since(&entry.since))));
        }
    }
    if !decay.is_empty() {
        out.push('\n');
        out.push_str(&style.heading(&format!("Decay ({})", decay.len())));
        for entry in decay {
            let lead = format!("  {}  ", pad(&entry.node, 8));
            out.push_str(&style.beside(&lead, &format!("{}{}", clean(&entry.text), since(&entry.since))));
        }
    }
}

fn changes(out: &mut String, plan: &Plan, view: &PlanView<'_>, style: &Style) {
    out.push('\n');
    if plan.steps.is_empty() {
        out.push_str(&style.heading("No changes"));
    } else {
        out.push_str(&style.heading(&format!("Changes ({})", count(plan.steps.len(), "step"))));
        let name_width = plan.steps.iter().map(|step| title(step).chars().count()).max().unwrap_or(0);
        let id_width = plan.steps.len().to_string().len();
        let instances: BTreeMap<(&str, &str), &PlannedInstance> =
            plan.instances.iter().map(|i| ((i.instance.as_str(), i.node.as_str()), i)).collect();
        for step in &plan.steps {
            let id = step.instance.as_deref().unwrap_or_default();
            let instance = instances.get(&(id, step.node.as_str())).copied();
            out.push_str(&change(step, instance, view, style, (name_width, id_width)));
        }
    }
    if plan.summary.unchanged > 0 {
        let names = if view.amount == Amount::Full { "" } else { " (--full lists them)" };
        out.push_str(&format!(
            "  {}\n",
            style.paint(Ink::Dim, &format!("{} unchanged{names}", plan.summary.unchanged))
        ));
    }
}

pub(super) fn title(step: &Step) -> String {
    if step.verb == Verb::Fetch { step.model.clone() } else { format!("{}/{}", step.model, step.replica) }
}

fn change(
    step: &Step,
    instance: Option<&PlannedInstance>,
    view: &PlanView<'_>,
    style: &Style,
    (name_width, id_width): (usize, usize),
) -> String {
    let lead = format!(
        "  {:>id_width$} {}  {}  ",
        step.id,
        words::verb_column(style, step.verb),
        pad(&title(step), name_width)
    );
    let indent = " ".repeat(2 + id_width + 1 + 11 + 2);
    let mut text = style.beside(&lead, &place(step, instance, view));
    if let Some(instance) = instance.filter(|_| !matches!(step.verb, Verb::Stop | Verb::Adopt)) {
        text.push_str(&style.beside(&indent, &shape(instance)));
        text.push_str(&style.beside(&indent, &format!("memory {}", memory(instance))));
        if let Some(chosen) = choice(step, instance) {
            text.push_str(&style.beside(&indent, &chosen));
        }
        if view.amount == Amount::Full {
            text.push_str(&style.beside(&indent, &format!("runs {}", instance.argv.join(" "))));
        }
    }
    let cost = cost(step);
    if !cost.is_empty() {
        text.push_str(&style.beside(&indent, &cost.join("; ")));
    }
    let reason = format!("because {}: {}", words::because(step.because), clean(&step.detail));
    text.push_str(&style.beside(&indent, &reason));
    if !step.after.is_empty() {
        let ids: Vec<String> = step.after.iter().map(u32::to_string).collect();
        let after = format!("after {} {}", if ids.len() == 1 { "step" } else { "steps" }, ids.join(", "));
        text.push_str(&style.beside(&indent, &style.paint(Ink::Dim, &after)));
    }
    text
}

pub(super) fn place(step: &Step, instance: Option<&PlannedInstance>, view: &PlanView<'_>) -> String {
    let here = match instance {
        Some(instance) => {
            let place = words::place(&step.node, &instance.accelerators, view.inventory);
            match words::devices(&step.node, &instance.accelerators, view.inventory) {
                Some(devices) => format!("{place}  {devices}"),
                None => place,
            }
        }
        None => {
            let stopped = step.instance.as_ref().and_then(|id| {
                let node = view.inventory?.node(&step.node)?;
                node.instances.iter().find(|facts| facts.instance == *id)
            });
            match stopped {
                Some(facts) => words::place(&step.node, &facts.accelerators, view.inventory),
                None => step.node.clone(),
            }
        }
    };
    let Some(from) = &step.from_node else { return here };
    let old = step.from_instance.as_ref().and_then(|id| {
        let node = view.inventory?.node(from)?;
        node.instances.iter().find(|facts| facts.instance == *id)
    });
    let from = old.map_or_else(|| from.clone(), |facts| words::place(from, &facts.accelerators, view.inventory));
    format!("{from} -> {here}")
}

/// Engine, variant, split, context and port on one line.
pub(super) fn shape(instance: &PlannedInstance) -> String {
    let version = instance.engine_version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    if let Some(first) = instance.nodes.first().filter(|_| instance.is_worker()) {
        let (model, replica, port) = (&instance.model, instance.replica, instance.port);
        return format!("{}{version}, worker for {model}/{replica} on {first}, port {port}", instance.engine);
    }
    let mut words = vec![format!("{}{version}", instance.engine)];
    words.extend(instance.image.as_ref().map(|image| format!("in {image}")));
    if !instance.modules.is_empty() {
        words.push(format!("with {}", instance.modules.join(" ")));
    }
    words.push(instance.variant.clone());
    if instance.tensor_parallel > 1 {
        words.push(format!("tensor parallel {}", instance.tensor_parallel));
    }
    if instance.pipeline_parallel > 1 {
        words.push(format!("pipeline {}", instance.pipeline_parallel));
    }
    if instance.host_layers > 0 && instance.processes.is_empty() {
        let accelerated: u32 = instance.layers.iter().sum();
        words.push(match accelerated {
            0 => format!("{} layers in host memory", instance.host_layers),
            held => format!("{} of {} layers in host memory", instance.host_layers, held + instance.host_layers),
        });
    }
    if !instance.processes.is_empty() {
        words.push(over_nodes(instance));
    }
    words.push(format!("context {} x {}", instance.context, instance.concurrency));
    words.push(format!("port {}", instance.port));
    words.join(", ")
}

/// `layers over 2 nodes: a 12, b 18`.
fn over_nodes(instance: &PlannedInstance) -> String {
    let mut layers = instance.layers.iter();
    let own: u32 = layers.by_ref().take(instance.accelerators.len()).sum::<u32>() + instance.host_layers;
    let mut each = vec![format!("{} {own}", instance.node)];
    // Devices of a worker are not told apart here: with several, their layers come one after another.
    let rest: Vec<u32> = layers.copied().collect();
    let equal = rest.len() == instance.processes.len();
    for (number, process) in instance.processes.iter().enumerate() {
        each.push(if equal { format!("{} {}", process.node, rest[number]) } else { process.node.clone() });
    }
    if !equal {
        each.push(format!("{} in all on workers", rest.iter().sum::<u32>()));
    }
    format!("layers over {} nodes: {}", instance.nodes.len(), each.join(", "))
}

/// Why this variant and not the next better one, where there was a choice and the step does not say it already.
pub(super) fn choice(step: &Step, instance: &PlannedInstance) -> Option<String> {
    let told = step.detail.contains(&instance.because);
    let chosen = instance.because.starts_with(&instance.variant) || !instance.better.is_empty();
    (chosen && !told).then(|| clean(&instance.because))
}

/// `18.4 of 22.0 GiB each`, or one figure per device where they differ; on the CPU the host's.
pub(super) fn memory(instance: &PlannedInstance) -> String {
    let host = &instance.memory.host;
    let figures: Vec<String> =
        instance.memory.per_accelerator.iter().map(|m| bytes_of(m.total_bytes, m.capacity_bytes)).collect();
    let mut text = match figures.as_slice() {
        [] => {
            let planned = bytes_of(host.total_bytes, host.capacity_bytes);
            let known = measurement(host.total_bytes, host.estimated_bytes, host.measured_bytes);
            return format!("{planned} of the host{known}");
        }
        [one] => one.clone(),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("{first} each"),
        _ => figures.join(" + "),
    };
    if let Some(m) = instance.memory.per_accelerator.first() {
        let parts = [("weights", m.weights_bytes), ("KV", m.kv_bytes), ("other", m.overhead_bytes)];
        let parts: Vec<String> = parts.iter().map(|(word, bytes)| format!("{word} {}", format_bytes(*bytes))).collect();
        text.push_str(&format!(" ({})", parts.join(", ")));
    }
    // Of several ranks the one that was measured largest.
    let largest = instance.memory.per_accelerator.iter().max_by_key(|m| m.measured_bytes);
    text.push_str(
        &largest.map_or_else(String::new, |m| measurement(m.total_bytes, m.estimated_bytes, m.measured_bytes)),
    );
    if host.total_bytes > 0 {
        text.push_str(&format!("; host {}", format_bytes(host.total_bytes)));
    }
    text
}

/// `; estimated 20.1 GiB, 17.2 GiB measured (-6 %)`: against what is planned now, so that the difference is the margin.
fn measurement(planned: u64, estimated: Option<u64>, measured: Option<u64>) -> String {
    let estimated = estimated.map(|bytes| format!("estimated {}", format_bytes(bytes)));
    let measured = measured.map(|bytes| words::measured(planned, bytes));
    let known: Vec<String> = estimated.into_iter().chain(measured).collect();
    if known.is_empty() { String::new() } else { format!("; {}", known.join(", ")) }
}

pub(super) fn cost(step: &Step) -> Vec<String> {
    let mut words = Vec::new();
    if step.verb == Verb::Fetch {
        let time = step.estimated_ms.map(|ms| format!(", {}", about_long(ms))).unwrap_or_default();
        words.push(format!("{} {}{time}", format_bytes(step.download_bytes), way(step)));
        let limit = step.fetch.as_ref().and_then(|planned| planned.limit_bytes_per_s);
        words.extend(limit.map(|limit| format!("at most {} (limit download)", format_rate(limit))));
    } else if let Some(ms) = step.estimated_ms.filter(|ms| *ms > 0) {
        words.push(format!("takes {}", about(ms)));
    }
    if step.downtime_ms > 0 {
        words.push(format!("downtime {}", about(step.downtime_ms)));
    } else if step.verb == Verb::Move {
        words.push("no downtime: the new one starts before the old one stops".to_owned());
    }
    if step.sessions > 0 {
        words.push(format!("{} live on it", count(step.sessions as usize, "session")));
    }
    if step.confirm.is_some() {
        words.push("asks before it is done".to_owned());
    }
    words
}

/// The way that a fetch takes, in words.
fn way(step: &Step) -> String {
    match step.fetch.as_ref().map(|planned| &planned.from) {
        Some(FetchFrom::Folder(_)) => "from the controller".to_owned(),
        Some(FetchFrom::Hub(_)) | None => "from the hub".to_owned(),
        Some(FetchFrom::Relay(_)) => format!("through the controller ({} does not reach the hub)", step.node),
        Some(FetchFrom::Node { node, .. }) => format!("from node {node}"),
    }
}

fn not_placed(out: &mut String, plan: &Plan, style: &Style) {
    if plan.unplaced.is_empty() {
        return;
    }
    let required = plan.unplaced.iter().filter(|unplaced| unplaced.required).count();
    let note = if required > 0 { format!(", {required} required") } else { String::new() };
    out.push('\n');
    out.push_str(&style.heading(&format!("Not placed ({}{note})", count(plan.unplaced.len(), "model"))));
    out.push_str(&unplaced_text(&plan.unplaced, style));
}

/// What has no place: why on each node, and the nearest change.
pub fn unplaced_text(unplaced: &[Unplaced], style: &Style) -> String {
    let mut out = String::new();
    for unplaced in unplaced {
        let lead =
            format!("  {}  ", style.paint(if unplaced.required { Ink::Bad } else { Ink::Change }, &unplaced.model));
        let word = if unplaced.required { "missing, fewer than the minimum" } else { "missing; it has its minimum" };
        let what = match super::egress::is_way_out(unplaced) {
            true => "no egress node for the way to its provider".to_owned(),
            false => format!("{} {word}", count(unplaced.replicas as usize, "replica")),
        };
        out.push_str(&style.beside(&lead, &what));
        let widest = |lengths: Vec<usize>| lengths.into_iter().max().unwrap_or(0).max(8);
        let nodes = widest(unplaced.reasons.iter().map(|reason| reason.at().chars().count()).collect());
        let constraints = widest(unplaced.reasons.iter().map(|reason| reason.constraint.chars().count()).collect());
        for reason in &unplaced.reasons {
            let lead = format!("      {}  {}  ", pad(&reason.at(), nodes), pad(&reason.constraint, constraints));
            out.push_str(&style.beside(&lead, &reason.text));
        }
        out.push_str(&super::explain::together_text(&unplaced.together, &unplaced.model, "      ", style));
        out.push_str(&style.beside("      ", &nearest(unplaced)));
    }
    out
}

/// The nearest change that would find it a place, or where to look for one.
pub(super) fn nearest(unplaced: &Unplaced) -> String {
    match unplaced.nearest.as_str() {
        "" | "none found" => format!("no single change found; see: flock explain {}", unplaced.model),
        found => format!("nearest change: {found}"),
    }
}

fn blocked(out: &mut String, plan: &Plan, style: &Style) {
    if plan.blocked.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Blocked ({})", plan.blocked.len())));
    for entry in &plan.blocked {
        let name = if entry.model == "*" { "everything" } else { &entry.model };
        let since = entry.since.as_ref().map(|at| format!(" since {at}")).unwrap_or_default();
        let lead = format!("  ! {}  ", style.paint(Ink::Bad, name));
        let steps = waiting(plan, entry);
        let steps = if steps.is_empty() { steps } else { format!("{steps}; ") };
        out.push_str(&style.beside(&lead, &clean(&format!("{}{since}: {steps}{}", entry.policy, entry.remedy))));
    }
}

/// What of a model waits for a yes: `move small/0 from ada-1 to a100`.
pub(super) fn waiting(plan: &Plan, blocked: &Blocked) -> String {
    let asked = plan.approvals.iter().filter(|a| blocked.policy == "approval" && a.remedy() == blocked.remedy);
    let steps = asked.flat_map(|approval| &approval.steps).filter(|step| step.model == blocked.model);
    let mut steps: Vec<_> = steps.collect();
    steps.sort_by(|a, b| (a.replica, &a.node, a.verb).cmp(&(b.replica, &b.node, b.verb)));
    let told: Vec<String> = steps
        .iter()
        .map(|step| {
            let verb = words::verb(step.verb).1;
            let way = match &step.from_node {
                Some(from) => format!("from {from} to {}", step.node),
                None => format!("on {}", step.node),
            };
            format!("{verb} {}/{} {way}", step.model, step.replica)
        })
        .collect();
    told.join(", ")
}

/// The model and what would be done with it: `small (move from ada-1)`.
pub(super) fn put_off(entry: &Deferred) -> String {
    let name = if entry.model == "*" { "everything" } else { &entry.model };
    match (entry.verb, &entry.from_node) {
        (Some(verb), Some(from)) => format!("{name} ({} from {from})", words::verb(verb).1),
        (Some(verb), None) => format!("{name} ({})", words::verb(verb).1),
        (None, _) => name.to_owned(),
    }
}

fn deferred(out: &mut String, plan: &Plan, style: &Style) {
    if plan.deferred.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Deferred ({})", plan.deferred.len())));
    let mut grouped: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for entry in &plan.deferred {
        grouped.entry((&entry.node, &entry.reason)).or_default().push(put_off(entry));
    }
    for ((node, reason), names) in grouped {
        let why = deferred_because(reason);
        out.push_str(&style.beside(&format!("  ? {node}  "), &format!("{}: {why}", names.join(", "))));
    }
}

/// Why something is put off, in words.
pub(super) fn deferred_because(reason: &str) -> &str {
    match reason {
        "unreachable" => "the node is unreachable; done when it answers",
        "absent" => "the node is not there yet; done when it joins",
        "selection" => "not part of this run (--on, --exclude, or a drain, which only empties its nodes)",
        "window" => "a window denies it now",
        "paused" => "paused",
        "distrust" => "most nodes are away at once: their facts are not trusted",
        "moves_per_hour" => "`limit moves-per-hour` lets no more move now",
        other => other,
    }
}

fn warnings(out: &mut String, plan: &Plan, style: &Style) {
    if plan.warnings.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Warnings ({})", plan.warnings.len())));
    for warning in &plan.warnings {
        let at = match (&warning.file, warning.line) {
            (Some(file), Some(line)) => format!("{file}:{line} "),
            _ => String::new(),
        };
        let hint = warning.hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        out.push_str(&style.beside(&format!("  {}  ", warning.id), &format!("{at}{}{hint}", warning.message)));
    }
}

fn unchanged(out: &mut String, plan: &Plan, view: &PlanView<'_>, style: &Style) {
    let touched: BTreeSet<&String> = plan.steps.iter().filter_map(|step| step.instance.as_ref()).collect();
    let rest: Vec<&PlannedInstance> = plan.instances.iter().filter(|i| !touched.contains(&i.instance)).collect();
    if rest.is_empty() {
        return;
    }
    out.push('\n');
    out.push_str(&style.heading(&format!("Without a step ({})", rest.len())));
    for instance in rest {
        let place = words::place(&instance.node, &instance.accelerators, view.inventory);
        let lead = format!("    {}/{}  {place}  ", instance.model, instance.replica);
        out.push_str(&style.beside(&lead, &format!("{}, {}", shape(instance), memory(instance))));
    }
}

fn solver(out: &mut String, plan: &Plan, style: &Style) {
    out.push('\n');
    out.push_str(&style.heading("Placement"));
    out.push_str(&format!("  {}, gap {:.2} %\n", plan.solver.status, plan.solver.gap * 100.0));
    for tier in &plan.solver.tiers {
        out.push_str(&format!("  {}: {} of at most {}\n", tier.name, tier.value, tier.bound));
    }
}
