//! `model "name" { … }`: what runs on nodes, and names of providers' models. Its table is in `model_words.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::context::{self, Context};
use super::model_words::MODEL_CHILDREN;
use super::syntax::{Entry, Node};
use super::values::{self, Date};
use super::{LabelIs, Model, PlaceRules, Priority, Replicas, VariantChoice, ids, owned, source};
use crate::base::{Diagnostic, Dtype, EngineKind, Place, Quality, Spanned};

/// Words that a provider's model may have.
const PROVIDER_WORDS: &[&str] =
    &["provider", "max-latency", "context", "concurrency", "priority", "label", "owner", "expires"];

/// Further words of a model. Placement acts on the first two, labels and owner; the others act with later versions.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModelExtras {
    /// Whose quantisations are trusted.
    pub weights_from: Vec<Spanned<String>>,
    /// Parts that may be placed apart.
    pub parts: Vec<Spanned<String>>,
    /// Weights that are added.
    pub adapters: Vec<Spanned<super::Source>>,
    /// Where it is open to others.
    pub listen: Option<Spanned<String>>,
    /// How a new version comes.
    pub rollout: Option<Spanned<Rollout>>,
    /// What is done about drift.
    pub on_drift: Option<Spanned<OnDrift>>,
    /// Facts about it.
    pub labels: BTreeMap<String, String>,
    /// Whose it is.
    pub owner: Option<Spanned<String>>,
    /// Until when it is wanted.
    pub expires: Option<Spanned<Date>>,
    /// Stopped after no request for this long.
    pub idle_stop: Option<Spanned<Duration>>,
    /// Tokens of a typical request.
    pub typical_tokens: Option<Spanned<u64>>,
    /// What is done when memory runs out.
    pub on_oom: Option<Spanned<OnOom>>,
}

/// How a new version of a model comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rollout {
    /// The new one first.
    Surge,
    /// The old one is stopped first.
    Recreate,
}

/// What is done about drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDrift {
    /// Put right.
    Correct,
    /// Only reported.
    Report,
}

/// What is done when memory runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnOom {
    /// Started again with less context.
    ShrinkContext,
    /// Left failed.
    Fail,
}

/// A name for a model of a provider.
#[derive(Debug, Clone, Serialize)]
pub struct ProviderModel {
    /// Its name here.
    pub name: Spanned<String>,
    /// The provider.
    pub provider: Spanned<String>,
    /// Its name there.
    pub model: Spanned<String>,
    /// Longest way to the provider.
    pub max_latency: Option<Spanned<Duration>>,
    /// Tokens per request.
    pub context: Option<Spanned<u64>>,
    /// Requests at once.
    pub concurrency: Option<Spanned<u64>>,
    /// Priority of its requests.
    pub priority: Priority,
    /// Facts about it.
    pub labels: BTreeMap<String, String>,
    /// Whose it is.
    pub owner: Option<Spanned<String>>,
    /// Until when it is wanted.
    pub expires: Option<Spanned<Date>>,
}

/// A model of either kind.
pub(super) enum Decoded {
    Local(Box<Model>),
    Provider(Box<ProviderModel>),
}

/// A model's own words, and below them the cluster's defaults. A word of the model's own replaces the
/// default as a whole; `label` and `env` are merged name by name.
struct Words<'n> {
    own: &'n Node,
    defaults: Option<&'n Node>,
}

impl<'n> Words<'n> {
    fn child(&self, word: &'static str) -> Option<&'n Node> {
        self.own.child(word).or_else(|| self.defaults?.child(word))
    }

    fn arg(&self, word: &'static str) -> Option<&'n Entry> {
        self.child(word)?.arg(0)
    }

    fn all(&self, word: &'static str) -> Vec<&'n Node> {
        let own: Vec<&Node> = self.own.all(word).collect();
        let defaults = self.defaults.into_iter().flat_map(|node| node.all(word));
        if matches!(word, "label" | "env") {
            let given: Vec<_> = own.iter().filter_map(|node| node.arg(0)?.text()).collect();
            let further: Vec<&Node> = defaults
                .filter(|node| node.arg(0).and_then(Entry::text).is_none_or(|name| !given.contains(&name)))
                .collect();
            return own.into_iter().chain(further).collect();
        }
        if own.is_empty() { defaults.collect() } else { own }
    }
}

pub(super) fn decode(node: &Node, defaults: Option<&Node>, cx: &mut Context<'_>) -> Option<Decoded> {
    let words = Words { own: node, defaults };
    let own_weights = node.child("source").or_else(|| node.child("variant"));
    match (node.child("provider"), own_weights) {
        (Some(provider), Some(weights)) => {
            cx.error_about(
                ids::CONTRADICTION,
                weights.place(),
                "a model with weights and a provider",
                "keep one: weights run on nodes, a provider serves its own",
                (provider.place(), "the provider"),
            );
            None
        }
        (Some(provider), None) => provided(&words, provider, cx).map(|model| Decoded::Provider(Box::new(model))),
        (None, Some(_)) => local(&words, cx).map(|model| Decoded::Local(Box::new(model))),
        (None, None) => match words.child("provider") {
            Some(provider) => provided(&words, provider, cx).map(|model| Decoded::Provider(Box::new(model))),
            None => local(&words, cx).map(|model| Decoded::Local(Box::new(model))),
        },
    }
}

fn provided(words: &Words<'_>, provider: &Node, cx: &mut Context<'_>) -> Option<ProviderModel> {
    for child in words.own.children.iter().flatten() {
        child.read.set(true);
        let word = child.word();
        if !PROVIDER_WORDS.contains(&word) && MODEL_CHILDREN.iter().any(|spec| spec.word == word) {
            let message = format!("`{word}` of a model that a provider serves");
            cx.error_about(
                ids::CONTRADICTION,
                child.place(),
                message,
                "remove it: it applies to models on nodes only",
                (provider.place(), "the provider"),
            );
        }
    }
    let name = words.own.arg(0).and_then(Entry::spanned);
    let reference = provider.arg(0).and_then(Entry::spanned);
    if let Some(reference) = &reference {
        cx.refer("provider", reference);
    }
    let priority = cx.priority(words.arg("priority").and_then(Entry::spanned));
    Some(ProviderModel {
        name: name?,
        provider: reference?,
        model: provider.prop("name")?.spanned()?,
        max_latency: positive(words.arg("max-latency").and_then(|entry| entry.get(values::duration)), cx),
        context: words.arg("context").and_then(Entry::whole),
        concurrency: words.arg("concurrency").and_then(Entry::whole),
        priority,
        labels: context::labels(words.all("label").into_iter(), cx),
        owner: words.arg("owner").and_then(Entry::spanned),
        expires: words.arg("expires").and_then(|entry| entry.get(values::date)),
    })
}

/// A longest way, which is more than none.
pub(super) fn positive(
    latency: Option<Spanned<std::time::Duration>>,
    cx: &mut Context<'_>,
) -> Option<Spanned<std::time::Duration>> {
    if let Some(latency) = latency.as_ref().filter(|latency| latency.value.is_zero()) {
        cx.error(
            ids::OUT_OF_RANGE,
            &latency.place,
            "`max-latency` of 0 allows no way",
            "write the longest way, such as \"20ms\"",
        );
    }
    latency
}

fn local(words: &Words<'_>, cx: &mut Context<'_>) -> Option<Model> {
    let name = words.own.arg(0).and_then(Entry::spanned);
    if let Some(latency) = words.own.child("max-latency") {
        let hint = "it applies to a model with `provider`; for nodes, `place { near agent=\"…\" }` keeps ways short";
        cx.error(ids::CONTRADICTION, latency.place(), "`max-latency` of a model on nodes", hint);
    }
    let source = words
        .child("source")
        .and_then(|node| source::decode(node.arg(0)?, node.prop("revision"), node.prop("sha256"), cx));
    let mut variants: Vec<VariantChoice> = Vec::new();
    for node in words.all("variant") {
        let Some(name) = node.arg(0).and_then(Entry::spanned) else { continue };
        if let Some(first) = variants.iter().find(|variant| variant.name.value == name.value) {
            let message = format!("the variant `{}` is declared twice", name.value);
            cx.error_about(
                ids::DUPLICATE_NAME,
                &name.place,
                message,
                "give it another name",
                (&first.name.place, "first declared here"),
            );
            continue;
        }
        let Some(written) = node.prop("source") else { continue };
        if let Some(source) = source::decode(written, node.prop("revision"), node.prop("sha256"), cx) {
            variants.push(VariantChoice { name, source });
        }
    }
    if let Some(name) = &name
        && words.child("source").is_none()
        && words.child("variant").is_none()
    {
        let message = format!("model `{}` says not where its weights come from", name.value);
        cx.error(
            ids::MISSING_PROPERTY,
            &name.place,
            message,
            "add `source \"hf:owner/name\"`, `variant` lines or `provider \"…\" name=\"…\"`",
        );
    }
    let engines = engines(words, cx);
    let arguments = arguments(words, &engines, cx);
    let replicas = words.child("replicas").map_or(Replicas { min: 1, max: 1 }, |node| replicas(node, cx));
    let priority = cx.priority(words.arg("priority").and_then(Entry::spanned));
    let place = words.child("place").map(|node| place(node, cx)).unwrap_or_default();
    if let Some(own) = &name
        && let Some(itself) = place.near.iter().find(|near| near.value == own.value)
    {
        let hint = "its replicas: `pack` keeps them together, `spread` apart";
        cx.error(ids::CONTRADICTION, &itself.place, format!("`{}` near itself", own.value), hint);
    }
    let extras = extras(words, cx);
    without_effect(words.own, &engines, cx);
    let env = context::env(words.all("env").into_iter(), cx);
    let name = name?;
    Some(Model {
        concurrency: words
            .arg("concurrency")
            .and_then(Entry::whole)
            .unwrap_or_else(|| Spanned::new(1, name.place.clone())),
        context: words.arg("context").and_then(Entry::whole),
        min_quality: words.child("quality").and_then(|node| node.prop("min")).and_then(Entry::parsed::<Quality>),
        kv_dtype: words.arg("kv-dtype").and_then(Entry::parsed::<Dtype>),
        name,
        source,
        variants,
        engines,
        replicas,
        priority,
        place,
        arguments,
        env,
        extras,
    })
}

fn engines(words: &Words<'_>, cx: &mut Context<'_>) -> Vec<Spanned<EngineKind>> {
    let mut engines: Vec<Spanned<EngineKind>> = Vec::new();
    for engine in words.child("engine").into_iter().flat_map(Node::args).filter_map(Entry::parsed::<EngineKind>) {
        if let Some(first) = engines.iter().find(|other| other.value == engine.value) {
            let message = format!("the engine `{}` is given twice", engine.value);
            cx.error_about(
                ids::DUPLICATE_CHILD,
                &engine.place,
                message,
                "keep one",
                (&first.place, "first given here"),
            );
            continue;
        }
        engines.push(engine);
    }
    engines
}

/// Warns of what the model itself asks for and only llama.cpp does, where it names other engines alone.
fn without_effect(own: &Node, engines: &[Spanned<EngineKind>], cx: &mut Context<'_>) {
    let Some(first) = engines.first() else { return };
    if engines.iter().any(|engine| engine.value == EngineKind::LlamaCpp) {
        return;
    }
    let names: Vec<&str> = engines.iter().map(|engine| engine.value.word()).collect();
    let names = names.join(" and ");
    let one = engines.len() == 1;
    let mut tell = |place: &Place, word: &str, instead: String| {
        let message = format!("`{word}` has no effect: only llama.cpp acts on it, and {names} {instead}");
        let hint =
            format!("add llama.cpp to its engines, as in `engine \"{}\" \"llama.cpp\"`, or leave it out", first.value);
        cx.found.push(Diagnostic::warning(ids::NO_EFFECT, place, message).hint(hint));
    };
    if let Some(part) = own.child("part") {
        let serves = if one { "serves" } else { "serve" };
        tell(part.place(), "part", format!("{serves} the vision tower with the layers"));
    }
    let Some(allow) = own.child("place").and_then(|place| place.child("allow")) else { return };
    let allowed = |name: &str| {
        let entry = allow.prop(name)?;
        entry.get(values::boolean).filter(|flag| flag.value).map(|flag| flag.place)
    };
    if let Some(place) = allowed("offload") {
        let keeps = if one { "keeps" } else { "keep" };
        tell(&place, "allow offload=#true", format!("{keeps} all layers on accelerators"));
    }
    if let Some(place) = allowed("cpu") {
        let runs = if one { "is" } else { "are" };
        tell(&place, "allow cpu=#true", format!("{runs} planned on accelerators alone"));
    }
}

fn arguments(
    words: &Words<'_>,
    engines: &[Spanned<EngineKind>],
    cx: &mut Context<'_>,
) -> Vec<Spanned<(String, Option<String>)>> {
    let mut arguments = Vec::new();
    for node in words.all("argument") {
        let Some(flag) = node.arg(0).and_then(Entry::spanned) else { continue };
        if !flag.value.starts_with('-') || flag.value.chars().any(|c| c.is_whitespace() || c.is_control()) {
            cx.error(
                ids::WRONG_TYPE,
                &flag.place,
                "not an engine flag",
                "write `argument \"--flag\" \"value\"`, the value apart from the flag",
            );
            continue;
        }
        let kinds: Vec<EngineKind> = match engines {
            [] => EngineKind::ALL.to_vec(),
            some => some.iter().map(|engine| engine.value).collect(),
        };
        if let Some((kind, instead)) =
            kinds.into_iter().find_map(|kind| Some((kind, owned::instead(kind, &flag.value)?)))
        {
            // Without the value, which may be a secret.
            let message = format!("`{}` of {kind} is not for the config to set", owned::name(&flag.value));
            cx.error(ids::OWNED_ARGUMENT, &flag.place, message, instead);
            continue;
        }
        let value = node.arg(1).and_then(|entry| entry.get(values::scalar)).map(|value| value.value);
        arguments.push(Spanned::new((flag.value, value), flag.place));
    }
    arguments
}

fn replicas(node: &Node, cx: &mut Context<'_>) -> Replicas {
    let min = node.prop("min").and_then(Entry::whole::<u32>);
    let max = node.prop("max").and_then(Entry::whole::<u32>);
    if node.entries.is_empty() {
        cx.error(
            ids::MISSING_PROPERTY,
            node.place(),
            "`replicas` without a number",
            "write `replicas max=2`, or `min=1 max=2`",
        );
    }
    if let (Some(min), Some(max)) = (&min, &max)
        && min.value > max.value
    {
        let message = format!("at least {} and at most {} replicas", min.value, max.value);
        cx.error_about(
            ids::OUT_OF_RANGE,
            &max.place,
            message,
            "`max` is the desired number and not below `min`",
            (&min.place, "the minimum"),
        );
    }
    match (min, max) {
        (None, None) => Replicas { min: 1, max: 1 },
        (None, Some(max)) => Replicas { min: 1.min(max.value), max: max.value },
        (Some(min), None) => Replicas { min: min.value, max: min.value.max(1) },
        (Some(min), Some(max)) => Replicas { min: min.value, max: max.value },
    }
}

fn label_is(node: &Node) -> Option<LabelIs> {
    let label = node.prop("label")?.text()?.to_owned();
    let is = node.prop("is")?.get(values::scalar)?.value;
    Some(LabelIs { label, is })
}

fn place(node: &Node, cx: &mut Context<'_>) -> PlaceRules {
    let spanned = |node: &Node, value| Spanned::new(value, node.place().clone());
    let mut rules = PlaceRules::default();
    for child in node.all("require") {
        let Some(rule) = label_is(child) else { continue };
        if let Some(other) =
            rules.require.iter().find(|other| other.value.label == rule.label && other.value.is != rule.is)
        {
            let message = format!("no node has two values of `{}`", rule.label);
            let (place, first) = (child.place().clone(), other.place.clone());
            cx.error_about(
                ids::CONTRADICTION,
                &place,
                message,
                "all `require` lines must hold at once; keep one",
                (&first, "the other one"),
            );
        }
        if rule.label == "node" && !rule.is.is_empty() {
            let name = child.prop("is").and_then(Entry::spanned);
            if let Some(name) = name {
                cx.refer("node", &name);
            }
        }
        rules.require.push(spanned_rule(child, rule));
    }
    for child in node.all("prefer") {
        let weight = child.prop("weight").and_then(Entry::whole).map_or(1, |weight| weight.value);
        if let Some(rule) = label_is(child) {
            rules.prefer.push(spanned(child, (rule, weight)));
        }
    }
    // The order in which rules are written means nothing.
    rules.require.sort_by(|a, b| (&a.value.label, &a.value.is).cmp(&(&b.value.label, &b.value.is)));
    rules.prefer.sort_by(|a, b| {
        let key = |rule: &Spanned<(LabelIs, u32)>| (rule.value.0.label.clone(), rule.value.0.is.clone(), rule.value.1);
        key(a).cmp(&key(b))
    });
    rules.spread_by = node.child("spread").and_then(|child| child.prop("by")).and_then(Entry::spanned);
    rules.pack = node.child("pack").is_some();
    for child in node.all("near") {
        near(child, &mut rules.near, cx);
    }
    rules.near.sort_by(|a, b| a.value.cmp(&b.value));
    if let Some(allow) = node.child("allow") {
        let flag = |name| allow.prop(name).and_then(|entry| entry.get(values::boolean)).is_some_and(|flag| flag.value);
        rules.allow_cpu = flag("cpu");
        rules.allow_offload = flag("offload");
        rules.allow_nodes = flag("nodes");
    }
    rules
}

fn spanned_rule(node: &Node, rule: LabelIs) -> Spanned<LabelIs> {
    Spanned::new(rule, node.place().clone())
}

/// Agents are kept as `agent/NAME`, models by their bare name, as on the command line.
fn near(node: &Node, rules: &mut Vec<Spanned<String>>, cx: &mut Context<'_>) {
    let (agent, model) = (node.prop("agent").and_then(Entry::spanned), node.prop("model").and_then(Entry::spanned));
    if agent.is_none() && model.is_none() {
        cx.error(
            ids::MISSING_PROPERTY,
            node.place(),
            "`near` without a neighbour",
            "write `near agent=\"…\"` or `near model=\"…\"`",
        );
    }
    if let Some(agent) = agent {
        cx.refer("agent", &agent);
        rules.push(agent.map(|name| format!("agent/{name}")));
    }
    if let Some(model) = model {
        cx.refer("model", &model);
        rules.push(model);
    }
}

fn extras(words: &Words<'_>, cx: &mut Context<'_>) -> ModelExtras {
    let list = |word| words.all(word).into_iter().flat_map(Node::args).filter_map(Entry::spanned).collect::<Vec<_>>();
    let mut adapters = Vec::new();
    for node in words.all("adapter") {
        adapters.extend(node.arg(0).and_then(|entry| source::decode(entry, None, None, cx)));
    }
    let word = |name| words.arg(name).and_then(|entry: &Entry| Some((entry.text()?, entry.at().clone())));
    ModelExtras {
        weights_from: list("weights-from"),
        parts: list("part"),
        adapters,
        listen: words.arg("listen").and_then(Entry::spanned),
        rollout: word("rollout").and_then(|(text, place)| {
            let how = match text {
                "surge" => Rollout::Surge,
                "recreate" => Rollout::Recreate,
                _ => return None,
            };
            Some(Spanned::new(how, place))
        }),
        on_drift: word("on-drift").and_then(|(text, place)| Some(Spanned::new(OnDrift::parse(text)?, place))),
        labels: context::labels(words.all("label").into_iter(), cx),
        owner: words.arg("owner").and_then(Entry::spanned),
        expires: words.arg("expires").and_then(|entry| entry.get(values::date)),
        idle_stop: words.arg("idle-stop").and_then(|entry| entry.get(values::duration)),
        typical_tokens: words.child("use").and_then(|node| node.prop("typical-tokens")).and_then(Entry::whole),
        on_oom: word("on-oom").and_then(|(text, place)| {
            let what = match text {
                "shrink-context" => OnOom::ShrinkContext,
                "fail" => OnOom::Fail,
                _ => return None,
            };
            Some(Spanned::new(what, place))
        }),
    }
}

impl OnDrift {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "correct" => Some(Self::Correct),
            "report" => Some(Self::Report),
            _ => None,
        }
    }
}
