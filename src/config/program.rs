//! Workflows checked as programs: order, references, lists, times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::agent::Text;
use super::context::Context;
use super::template::{self, Reference};
use super::workflow::{Action, Input, InputKind, Step, Wait, Workflow};
use super::{ids, json_schema, names};
use crate::base::{Diagnostic, Place, Spanned};

/// Checks all workflows, each by itself and then how they call each other.
pub(super) fn check(workflows: &BTreeMap<String, Workflow>, cx: &mut Context<'_>) {
    for workflow in workflows.values() {
        Program::new(workflow, workflows).check(cx);
    }
    calls(workflows, cx);
}

/// Workflows that call each other in a circle.
fn calls(workflows: &BTreeMap<String, Workflow>, cx: &mut Context<'_>) {
    let edges: BTreeMap<&str, BTreeSet<&str>> = workflows
        .iter()
        .map(|(name, workflow)| {
            let called = workflow.steps.values().filter_map(|step| match &step.action {
                Some(Action::Workflow { workflow, .. }) => Some(workflow.value.as_str()),
                _ => None,
            });
            (name.as_str(), called.filter(|called| workflows.contains_key(*called)).collect())
        })
        .collect();
    let (circles, _) = circles(&edges);
    for circle in circles {
        let place = &workflows[circle[0]].name.place;
        let message = format!("workflows call each other in a circle: {} -> {}", circle.join(" -> "), circle[0]);
        cx.error(ids::CYCLE, place, message, "use `repeat` inside one workflow");
    }
}

/// Splits what cannot be ordered into circles (each once, from its first member) and what waits for them.
fn circles<'n>(edges: &BTreeMap<&'n str, BTreeSet<&'n str>>) -> (Vec<Vec<&'n str>>, Vec<&'n str>) {
    let mut left = edges.clone();
    loop {
        let ready: Vec<&str> = left.iter().filter(|(_, needs)| needs.is_empty()).map(|(name, _)| *name).collect();
        if ready.is_empty() {
            break;
        }
        for name in &ready {
            left.remove(name);
        }
        for needs in left.values_mut() {
            for name in &ready {
                needs.remove(name);
            }
        }
    }
    let mut found = Vec::new();
    let mut waiting = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for name in left.keys() {
        if seen.contains(name) {
            continue;
        }
        match way_back(name, &left) {
            Some(circle) => {
                seen.extend(circle.iter().copied());
                found.push(circle);
            }
            None => waiting.push(*name),
        }
    }
    // A member of a second circle through the same steps is reported with the first.
    (found, waiting)
}

/// The shortest way from a name back to itself.
fn way_back<'n>(start: &'n str, edges: &BTreeMap<&'n str, BTreeSet<&'n str>>) -> Option<Vec<&'n str>> {
    let mut from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(name) = queue.pop_front() {
        for next in edges.get(name).into_iter().flatten() {
            if *next == start {
                let mut way = vec![name];
                while way[way.len() - 1] != start {
                    way.push(from[way[way.len() - 1]]);
                }
                way.reverse();
                return Some(way);
            }
            if !from.contains_key(next) {
                from.insert(next, name);
                queue.push_back(next);
            }
        }
    }
    None
}

/// In which position a template stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// A prompt or an input of another workflow: any values inside a text.
    Text,
    /// `when`.
    When,
    /// `until`: the step's own answer is there.
    Until,
    /// `for-each`.
    List,
}

struct Program<'w> {
    workflow: &'w Workflow,
    all: &'w BTreeMap<String, Workflow>,
    /// For each step, the steps that have run before it.
    before: BTreeMap<&'w str, BTreeSet<&'w str>>,
}

impl<'w> Program<'w> {
    fn new(workflow: &'w Workflow, all: &'w BTreeMap<String, Workflow>) -> Self {
        let mut program = Self { workflow, all, before: BTreeMap::new() };
        for name in workflow.steps.keys() {
            let reached = program.ancestors(name);
            program.before.insert(name, reached);
        }
        program
    }

    fn ancestors(&self, name: &'w str) -> BTreeSet<&'w str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            let Some(step) = self.workflow.steps.get(name) else { continue };
            for earlier in &step.after {
                if let Some((earlier, _)) = self.workflow.steps.get_key_value(&earlier.value)
                    && reached.insert(earlier.as_str())
                {
                    open.push(earlier);
                }
            }
        }
        reached
    }

    fn check(&self, cx: &mut Context<'_>) {
        self.order(cx);
        for step in self.workflow.steps.values() {
            self.times(step, cx);
            self.templates(step, cx);
            self.repeat(step, cx);
            self.called(step, cx);
        }
    }

    fn unknown_step(&self, name: &Spanned<String>, cx: &mut Context<'_>) {
        let known: Vec<&str> = self.workflow.steps.keys().map(String::as_str).collect();
        let message = format!("workflow `{}` has no step `{}`", self.workflow.name.value, name.value);
        let mut diagnostic =
            Diagnostic::error(ids::UNKNOWN_STEP, &name.place, message).hint(names::did_you_mean(&name.value, &known));
        let near = names::nearest(&name.value, known).and_then(|near| self.workflow.steps.get(near));
        diagnostic = match near {
            Some(step) => diagnostic.related(&step.name.place, format!("`{}` is declared here", step.name.value)),
            None => diagnostic.related(&self.workflow.name.place, "the workflow"),
        };
        cx.found.push(diagnostic);
    }

    fn order(&self, cx: &mut Context<'_>) {
        let steps = &self.workflow.steps;
        for step in steps.values() {
            for earlier in step.after.iter().filter(|earlier| !steps.contains_key(&earlier.value)) {
                self.unknown_step(earlier, cx);
            }
        }
        let edges: BTreeMap<&str, BTreeSet<&str>> = steps
            .iter()
            .map(|(name, step)| {
                let needs =
                    step.after.iter().map(|earlier| earlier.value.as_str()).filter(|name| steps.contains_key(*name));
                (name.as_str(), needs.collect())
            })
            .collect();
        let (circles, waiting) = circles(&edges);
        for circle in &circles {
            let first = &steps[circle[0]];
            let next = circle.get(1).copied().unwrap_or(circle[0]);
            let place =
                first.after.iter().find(|name| name.value == next).map_or(&first.name.place, |name| &name.place);
            let mut way: Vec<&str> = circle.clone();
            way.push(circle[0]);
            let message = format!("steps wait for each other: {}", way.join(" after "));
            let hint = "remove one `after`; to go back to an earlier step, write `repeat`";
            let mut diagnostic = Diagnostic::error(ids::CYCLE, place, message).hint(hint);
            for name in &circle[1..] {
                diagnostic = diagnostic.related(&steps[*name].name.place, format!("`{name}` is part of it"));
            }
            cx.found.push(diagnostic);
        }
        for name in waiting {
            let step = &steps[name];
            let Some(cause) = circles.iter().find(|circle| self.before[name].contains(circle[0])) else { continue };
            let message = format!("step `{name}` can never run: it waits for `{}`, which waits for itself", cause[0]);
            cx.error_about(
                ids::UNREACHABLE,
                &step.name.place,
                message,
                "break the cycle first",
                (&steps[cause[0]].name.place, "part of the cycle"),
            );
        }
    }

    fn times(&self, step: &Step, cx: &mut Context<'_>) {
        let Some(keep) = &self.workflow.keep else { return };
        let wait = step.wait.as_ref().and_then(|wait| match wait.value {
            Wait::Time(time) => Some(Spanned::new(time, wait.place.clone())),
            Wait::Signal(_) => None,
        });
        let budget = step.budget.time.map(|time| Spanned::new(time, step.name.place.clone()));
        let limits: [(&str, Option<&Spanned<Duration>>); 3] =
            [("timeout", step.timeout.as_ref()), ("wait", wait.as_ref()), ("budget", budget.as_ref())];
        for (word, limit) in limits {
            let Some(limit) = limit.filter(|limit| limit.value > keep.value) else { continue };
            let message = format!("the {word} of step `{}` is longer than the workflow is kept", step.name.value);
            cx.error_about(
                ids::TOO_LONG,
                &limit.place,
                message,
                "shorten it, or keep the workflow longer",
                (&keep.place, "kept this long"),
            );
        }
    }

    fn repeat(&self, step: &Step, cx: &mut Context<'_>) {
        let Some(repeat) = &step.repeat else { return };
        let target = &repeat.step;
        if !self.workflow.steps.contains_key(&target.value) {
            self.unknown_step(target, cx);
        } else if target.value != step.name.value
            && !self.before[step.name.value.as_str()].contains(target.value.as_str())
        {
            let message = format!("`{}` does not come before `{}`", target.value, step.name.value);
            let other = &self.workflow.steps[&target.value].name.place;
            cx.error_about(
                ids::UNKNOWN_STEP,
                &target.place,
                message,
                "`repeat` names the step itself or one that comes before it",
                (other, "declared here"),
            );
        }
    }

    fn called(&self, step: &Step, cx: &mut Context<'_>) {
        let Some(Action::Workflow { workflow, inputs }) = &step.action else { return };
        let Some(other) = self.all.get(&workflow.value) else { return };
        let known: Vec<&str> = other.inputs.keys().map(String::as_str).collect();
        for (name, value) in inputs.iter().filter(|(name, _)| !other.inputs.contains_key(*name)) {
            let message = format!("workflow `{}` has no input `{name}`", workflow.value);
            cx.error_about(
                ids::UNKNOWN_NAME,
                &value.place,
                message,
                names::did_you_mean(name, &known),
                (&other.name.place, "the workflow"),
            );
        }
        for input in
            other.inputs.values().filter(|input| input.default.is_none() && !inputs.contains_key(&input.name.value))
        {
            let message = format!("workflow `{}` needs the input `{}`", workflow.value, input.name.value);
            let hint = format!("add `input \"{}\" \"…\"`", input.name.value);
            cx.error_about(ids::MISSING_PROPERTY, &workflow.place, message, hint, (&input.name.place, "declared here"));
        }
    }

    fn templates(&self, step: &Step, cx: &mut Context<'_>) {
        if let Some(Action::Agent { prompt: Spanned { value: Text::Inline(text), place }, .. }) = &step.action {
            self.text(step, &Spanned::new(text.clone(), place.clone()), Position::Text, cx);
        }
        if let Some(Action::Workflow { inputs, .. }) = &step.action {
            for value in inputs.values() {
                self.text(step, value, Position::Text, cx);
            }
        }
        if let Some(when) = &step.when {
            self.text(step, when, Position::When, cx);
        }
        if let Some(each) = &step.for_each {
            self.text(step, &each.list, Position::List, cx);
        }
        if let Some(repeat) = &step.repeat {
            self.text(step, &repeat.until, Position::Until, cx);
        }
    }

    fn text(&self, step: &Step, text: &Spanned<String>, position: Position, cx: &mut Context<'_>) {
        let (found, bad) = template::references(text);
        let broken = !bad.is_empty();
        for bad in bad {
            let hint = "write one of {{ input.NAME }}, {{ steps.NAME.text }}, {{ steps.NAME.json.FIELD }}, {{ item }}";
            cx.error(ids::BAD_TEMPLATE, &bad.place, bad.message, hint);
        }
        if !broken && position != Position::Text && !template::is_single(&text.value) {
            let (id, message) = match position {
                Position::List => (ids::NOT_A_LIST, "`for-each` over a text"),
                _ => (ids::BAD_TEMPLATE, "a condition is one template"),
            };
            cx.error(id, &text.place, message, "write \"{{ … }}\" and nothing around it");
            return;
        }
        for reference in &found {
            self.reference(step, reference, position, cx);
        }
    }

    fn reference(&self, step: &Step, reference: &Reference, position: Position, cx: &mut Context<'_>) {
        let parts: Vec<&str> = reference.parts.iter().map(String::as_str).collect();
        let place = &reference.place;
        match parts[..] {
            ["input", name, ref fields @ ..] => self.input(name, fields, place, position, cx),
            ["steps", name, ref output @ ..] => self.output(step, name, output, place, position, cx),
            ["item", ..] if position == Position::List => {
                cx.error(
                    ids::UNKNOWN_VARIABLE,
                    place,
                    "`item` is not there yet",
                    "`for-each` names the list whose items `item` is",
                );
            }
            ["item", ..] if step.for_each.is_some() => {}
            ["item", ..] => {
                cx.error(
                    ids::UNKNOWN_VARIABLE,
                    place,
                    "`item` in a step without `for-each`",
                    "add `for-each \"{{ … }}\"` to the step",
                );
            }
            ["input"] | ["steps"] => {
                cx.error(
                    ids::BAD_TEMPLATE,
                    place,
                    format!("`{}` without a name", parts[0]),
                    format!("write {{{{ {}.NAME }}}}", parts[0]),
                );
            }
            _ => {
                let hint = match names::nearest(parts[0], ["input", "inputs", "step", "steps", "item"]) {
                    Some("inputs" | "input") => "write `input.NAME`".to_owned(),
                    Some("step" | "steps") => "write `steps.NAME.text`".to_owned(),
                    _ if self.workflow.inputs.contains_key(parts[0]) => format!("write `input.{}`", parts[0]),
                    _ if self.workflow.steps.contains_key(parts[0]) => format!("write `steps.{}.text`", parts[0]),
                    _ => "templates know `input`, `steps` and `item`".to_owned(),
                };
                cx.error(ids::UNKNOWN_VARIABLE, place, format!("unknown variable `{}`", parts[0]), hint);
            }
        }
    }

    fn input(&self, name: &str, fields: &[&str], place: &Place, position: Position, cx: &mut Context<'_>) {
        let Some(Input { kind, name: declared, .. }) = self.workflow.inputs.get(name) else {
            let known: Vec<&str> = self.workflow.inputs.keys().map(String::as_str).collect();
            let hint = match known.len() {
                0 => format!("declare it: `input \"{name}\" type=\"string\"`"),
                _ => names::did_you_mean(name, &known),
            };
            let message = format!("workflow `{}` has no input `{name}`", self.workflow.name.value);
            cx.error_about(ids::UNKNOWN_VARIABLE, place, message, hint, (&self.workflow.name.place, "the workflow"));
            return;
        };
        if let ([field, ..], false) = (fields, matches!(kind, InputKind::Json | InputKind::List)) {
            let message = format!("the input `{name}` has no field `{field}`");
            cx.error_about(
                ids::UNKNOWN_VARIABLE,
                place,
                message,
                "only inputs of type json have fields",
                (&declared.place, "declared here"),
            );
        } else if position == Position::List && !matches!(kind, InputKind::Json | InputKind::List) {
            let message = format!("the input `{name}` is no list");
            cx.error_about(
                ids::NOT_A_LIST,
                place,
                message,
                "declare it with type=\"list\"",
                (&declared.place, "declared here"),
            );
        }
    }

    /// Whether a step's answer is there when another runs: it ran before, or in an earlier round of a repeat.
    fn has_run(&self, step: &Step, other: &str, position: Position) -> bool {
        let name = step.name.value.as_str();
        if self.before[name].contains(other) || (position == Position::Until && other == name) {
            return true;
        }
        let within = |step: &str, target: &str, end: &str| {
            (step == target || self.before[step].contains(target)) && (step == end || self.before[end].contains(step))
        };
        self.workflow.steps.values().any(|end| {
            let Some(repeat) = &end.repeat else { return false };
            let (target, end) = (repeat.step.value.as_str(), end.name.value.as_str());
            self.workflow.steps.contains_key(target) && within(name, target, end) && within(other, target, end)
        })
    }

    fn output(
        &self,
        step: &Step,
        name: &str,
        output: &[&str],
        place: &Place,
        position: Position,
        cx: &mut Context<'_>,
    ) {
        let Some(other) = self.workflow.steps.get(name) else {
            self.unknown_step(&Spanned::new(name.to_owned(), place.clone()), cx);
            return;
        };
        let declared = &other.name.place;
        if !self.has_run(step, name, position) {
            let message = format!("step `{name}` has not run before `{}`", step.name.value);
            let hint = if step.name.value == name {
                "a step does not know its own answer".to_owned()
            } else {
                format!("add `after=\"{name}\"`")
            };
            cx.error_about(ids::UNKNOWN_VARIABLE, place, message, hint, (declared, "declared here"));
            return;
        }
        let signal = matches!(other.wait.as_ref().map(|wait| &wait.value), Some(Wait::Signal(_)));
        if other.action.is_none() && !signal {
            if other.wait.is_none() && other.approval.is_none() {
                // What it does has errors of its own, which have been reported.
                return;
            }
            let message = format!("step `{name}` has no answer");
            cx.error_about(
                ids::UNKNOWN_VARIABLE,
                place,
                message,
                "it only waits or asks for approval",
                (declared, "declared here"),
            );
            return;
        }
        let many = other.for_each.is_some();
        let (kind, fields) = match output {
            [kind, fields @ ..] => (*kind, fields),
            [] => ("", &[][..]),
        };
        let wanted = match (kind, many) {
            ("text", true) => Some("texts"),
            ("json", true) => Some("jsons"),
            ("texts", false) => Some("text"),
            ("jsons", false) => Some("json"),
            ("text" | "texts" | "json" | "jsons", _) => None,
            _ => {
                let known = if many { ["texts", "jsons"] } else { ["text", "json"] };
                let message = if kind.is_empty() {
                    format!("`steps.{name}` without what of it")
                } else {
                    format!("a step has no `{kind}`")
                };
                cx.error(
                    ids::UNKNOWN_VARIABLE,
                    place,
                    message,
                    format!("write `steps.{name}.{}` or `steps.{name}.{}`", known[0], known[1]),
                );
                return;
            }
        };
        if let Some(wanted) = wanted {
            let reason = if many { "it runs once for each item" } else { "it runs once" };
            let message = format!("step `{name}` has no `{kind}`: {reason}");
            cx.error_about(
                ids::UNKNOWN_VARIABLE,
                place,
                message,
                format!("write `steps.{name}.{wanted}`"),
                (declared, "declared here"),
            );
            return;
        }
        if kind.starts_with("text") {
            if let [field, ..] = fields {
                cx.error(
                    ids::UNKNOWN_VARIABLE,
                    place,
                    format!("a text has no field `{field}`"),
                    format!("write `steps.{name}.json.{field}`, with `output schema=\"…\"` in the step"),
                );
            } else if position == Position::List && kind == "text" {
                cx.error_about(
                    ids::NOT_A_LIST,
                    place,
                    format!("the text of step `{name}` is no list"),
                    "use a field of `json`, with `output schema=\"…\"` in that step",
                    (declared, "declared here"),
                );
            }
            return;
        }
        if matches!(other.action, Some(Action::Agent { .. })) && other.output_schema.is_none() {
            let hint = "add `output schema=\"…\"` to that step";
            cx.error_about(
                ids::UNKNOWN_VARIABLE,
                place,
                format!("step `{name}` answers with text, not JSON"),
                hint,
                (declared, "declared here"),
            );
            return;
        }
        if !many {
            self.fields(other, fields, place, position, cx);
        }
    }

    /// Where the schema's content is known, fields are checked against it.
    fn fields(&self, other: &Step, fields: &[&str], place: &Place, position: Position, cx: &mut Context<'_>) {
        let Some(schema) = &other.output_schema else { return };
        match json_schema::follow(cx.tree, &schema.value, fields) {
            json_schema::Found::Unknown => {}
            json_schema::Found::NoField { field, known } => {
                let message = format!("`{}` has no field `{field}`", schema.value);
                cx.error_about(
                    ids::UNKNOWN_VARIABLE,
                    place,
                    message,
                    names::did_you_mean(&field, &known),
                    (&schema.place, "the schema"),
                );
            }
            json_schema::Found::Type(kind) => {
                if position == Position::List && kind != "array" {
                    let message = format!("`{}` says that this is of type {kind}", schema.value);
                    cx.error_about(
                        ids::NOT_A_LIST,
                        place,
                        message,
                        "`for-each` needs an array",
                        (&schema.place, "the schema"),
                    );
                }
            }
        }
    }
}
