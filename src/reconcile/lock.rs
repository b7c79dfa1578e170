//! `flock lock`: from what the config names on the hub to what is pinned, keeping every pin that still holds.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt};

use crate::base::{Diagnostic, Spanned, sort_diagnostics};
use crate::config::{Desired, Model, Source};
use crate::ports::Hub;
use crate::weights::{Lock, LockedModel, LockedSource, difference};

use super::locked::{hub_sources, is_at_revision, owners, renamed};
use super::resolve::{ResolveError, pin};
use super::sources::{LEFT_OUT, UNRESOLVED};

/// Models that are resolved at once.
const MODELS: usize = 4;
/// Repositories of one model that are read at once.
const REPOSITORIES: usize = 4;
/// Most quantisations of one owner that are looked at.
const MAX_QUANTISED: usize = 50;

/// Whose pins are renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Nobody's: what is missing or disagrees is resolved.
    Missing,
    /// These models'.
    Models(BTreeSet<String>),
    /// All.
    All,
}

/// A lock that was brought up to date.
#[derive(Debug, Clone, PartialEq)]
pub struct Relocked {
    /// The whole lock.
    pub lock: Lock,
    /// What became of each model on the hub, in the order of their names.
    pub models: Vec<Relock>,
    /// Errors at the sources that could not be resolved, and warnings.
    pub findings: Vec<Diagnostic>,
}

/// What became of one model's pins.
#[derive(Debug, Clone, PartialEq)]
pub struct Relock {
    /// The model.
    pub model: String,
    /// What was pinned before.
    pub was: Option<LockedModel>,
    /// What is pinned now; after a failure, what was.
    pub is: Option<LockedModel>,
    /// Whether the hub did not give it.
    pub failed: bool,
}

/// Resolves what is to be resolved. A model that fails keeps what it had; the others are resolved all the same.
/// `told` is called with what is being read.
pub async fn relock(
    desired: &Desired,
    old: &Lock,
    update: &Update,
    hub: &dyn Hub,
    told: &(dyn Fn(&str) + Sync),
) -> Relocked {
    let on_hub: Vec<(&String, &Model)> =
        desired.models.iter().filter(|(_, model)| !hub_sources(model).is_empty()).collect();
    let resolved: Vec<(Relock, Vec<Diagnostic>)> = stream::iter(on_hub)
        .map(|(name, model)| async move {
            let was = old.models.get(name);
            let anew = match update {
                Update::Missing => false,
                Update::Models(names) => names.contains(name),
                Update::All => true,
            };
            let mut one = OneModel { model, hub, told, findings: Vec::new() };
            let mut is = one.resolve(was.filter(|_| !anew)).await;
            if let (Some(is), Some(was)) = (&mut is, was) {
                keep_ids(is, was);
            }
            let failed = is.is_none();
            (Relock { model: name.clone(), was: was.cloned(), is: is.or(was.cloned()), failed }, one.findings)
        })
        .buffered(MODELS)
        .collect()
        .await;
    let mut relocked = Relocked { lock: Lock::default(), models: Vec::new(), findings: Vec::new() };
    for (model, findings) in resolved {
        relocked.lock.models.extend(model.is.clone().map(|is| (model.model.clone(), is)));
        relocked.models.push(model);
        relocked.findings.extend(findings);
    }
    for (name, was) in &old.models {
        if relocked.models.iter().any(|known| known.model == *name) {
            continue;
        }
        let gone = Relock { model: name.clone(), was: Some(was.clone()), is: None, failed: false };
        let at = relocked.models.partition_point(|known| known.model < *name);
        relocked.models.insert(at, gone);
    }
    sort_diagnostics(&mut relocked.findings);
    relocked
}

/// The same file keeps its id: which other files a repository has, and so which ids must be told apart by a file's name,
/// is no news about what runs.
fn keep_ids(is: &mut LockedModel, was: &LockedModel) {
    for source in &mut is.sources {
        let same = |old: &&LockedSource| (&old.source, &old.quantised_from) == (&source.source, &source.quantised_from);
        let Some(old) = was.sources.iter().find(same) else { continue };
        for index in 0..source.variants.len() {
            let variant = &source.variants[index];
            let known = old.variants.iter().find(|old| {
                old.start_file.is_some() && old.start_file == variant.start_file && old.quality == variant.quality
            });
            let Some(id) = known.map(|known| known.id.clone()) else { continue };
            if !source.variants.iter().any(|other| other.id == id) {
                source.variants[index].id = id;
            }
        }
    }
}

struct OneModel<'a> {
    model: &'a Model,
    hub: &'a dyn Hub,
    told: &'a (dyn Fn(&str) + Sync),
    findings: Vec<Diagnostic>,
}

impl OneModel<'_> {
    fn failed(&mut self, source: &Spanned<Source>, error: &ResolveError) {
        let text = format!("model `{}`: {error}", self.model.name.value);
        self.findings.push(Diagnostic::error(UNRESOLVED, &source.place, text).hint(error.hint()));
    }

    /// The model's pins, those of `known` where they still hold; `None` after a failure.
    async fn resolve(&mut self, known: Option<&LockedModel>) -> Option<LockedModel> {
        let named = hub_sources(self.model);
        let (hub, told) = (self.hub, self.told);
        let pins: Vec<Result<LockedSource, ResolveError>> = stream::iter(&named)
            .map(|source| async move {
                let text = source.value.to_string();
                let pinned = known.and_then(|known| known.source(&text));
                if let Some(pinned) = pinned.filter(|pinned| is_at_revision(&source.value, pinned)) {
                    return Ok(pinned.clone());
                }
                told(&text);
                match &source.value {
                    Source::Hub { repository, revision, selector } => {
                        pin(hub, text, repository, revision.as_deref(), selector.as_deref()).await
                    }
                    Source::Path(_) | Source::OnNode(_) | Source::Url { .. } => {
                        unreachable!("hub_sources gives sources on the hub")
                    }
                }
            })
            .buffered(REPOSITORIES)
            .collect()
            .await;
        let mut sources = Vec::new();
        for (source, pin) in named.iter().zip(pins) {
            match pin {
                Ok(pin) => {
                    self.findings.extend(renamed(source, &pin));
                    sources.push(pin);
                }
                Err(error) => self.failed(source, &error),
            }
        }
        if sources.len() < named.len() {
            return None;
        }
        let weights_from = owners(self.model);
        if let (Some(source), Some(base)) = (named.first(), sources.first().cloned()) {
            let still = known.filter(|known| known.source(&base.source) == Some(&base));
            for owner in &weights_from {
                match self.quantised_by(owner, &base, still).await {
                    Ok(found) => sources.extend(found),
                    Err(error) => {
                        self.failed(source, &error);
                        return None;
                    }
                }
            }
        }
        sources[named.len()..].sort_by(|a, b| a.repository.cmp(&b.repository));
        Some(LockedModel { weights_from, sources })
    }

    /// One owner's quantisations of the base. What cannot be used is left out with a warning; what may be usable in a
    /// moment is an error, so that no pin is lost to a bad minute of the hub.
    async fn quantised_by(
        &mut self,
        owner: &str,
        base: &LockedSource,
        known: Option<&LockedModel>,
    ) -> Result<Vec<LockedSource>, ResolveError> {
        let looked = |known: &&LockedModel| known.weights_from.iter().any(|o| o.eq_ignore_ascii_case(owner));
        if let Some(known) = known.filter(looked) {
            let own = |source: &&LockedSource| {
                source.quantised_from.as_ref() == Some(&base.repository) && source.owner().eq_ignore_ascii_case(owner)
            };
            return Ok(known.sources.iter().filter(own).cloned().collect());
        }
        (self.told)(&format!("what {owner} quantised of {}", base.repository));
        let mut names = self.hub.quantised_by(&base.repository, owner).await?;
        names.retain(|name| *name != base.repository);
        names.sort();
        names.dedup();
        if !names.iter().any(|name| is_owned(name, owner)) {
            // The hub answers the same for an owner that there is not.
            let text = format!("the hub lists nothing of {owner} as quantised from {}", base.repository);
            let hint = "check the owner's spelling; name a repository whose card does not say what it was made from with a `variant` line";
            self.warn(owner, &text, hint);
        }
        if names.len() > MAX_QUANTISED {
            let rest = names.split_off(MAX_QUANTISED).len();
            let text = format!("{owner} has {rest} more repositories quantised from {}", base.repository);
            self.left_out(owner, &text, "name the ones that are wanted with `variant` lines");
        }
        let (hub, told) = (self.hub, self.told);
        let pins: BTreeMap<String, Result<LockedSource, ResolveError>> = stream::iter(names)
            .map(|name| async move {
                if !is_owned(&name, owner) {
                    return (name, None);
                }
                told(&format!("hf:{name}"));
                let pin = pin(hub, format!("hf:{name}"), &name, None, None).await;
                (name, Some(pin))
            })
            .buffered(REPOSITORIES)
            .filter_map(|(name, pin)| async move { Some((name, pin?)) })
            .collect()
            .await;
        let mut found = Vec::new();
        for (name, pin) in pins {
            match pin {
                Ok(pin) => found.extend(self.same_network(owner, &name, base, pin)),
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => self.left_out(owner, &error.to_string(), &error.hint()),
            }
        }
        Ok(found)
    }

    /// The quantisation with those of its variants that are of the base's network, where any is.
    fn same_network(
        &mut self,
        owner: &str,
        name: &str,
        base: &LockedSource,
        mut pin: LockedSource,
    ) -> Option<LockedSource> {
        if !is_owned(&pin.repository, owner) {
            let text = format!("{name} is called {} now, which is another owner's", pin.repository);
            self.left_out(owner, &text, "add that owner to `weights-from` to trust it");
            return None;
        }
        let network = &base.variants.first()?.architecture;
        let mut notes = BTreeSet::new();
        pin.variants.retain(|variant| match difference(network, &variant.architecture) {
            Some(differs) => {
                notes.insert(format!("{name} is no quantisation of {}: {differs}", base.repository));
                false
            }
            None => true,
        });
        for note in notes {
            self.left_out(owner, &note, "name it as a `variant` if it is meant all the same");
        }
        pin.quantised_from = Some(base.repository.clone());
        (!pin.variants.is_empty()).then_some(pin)
    }

    fn left_out(&mut self, owner: &str, text: &str, hint: &str) {
        self.warn(owner, &format!("left out: {text}"), hint);
    }

    /// A warning at the line that trusts an owner.
    fn warn(&mut self, owner: &str, text: &str, hint: &str) {
        let named = self.model.extras.weights_from.iter().find(|name| name.value.eq_ignore_ascii_case(owner));
        let place = named.map_or(&self.model.name.place, |owner| &owner.place);
        let text = format!("model `{}`: {text}", self.model.name.value);
        self.findings.push(Diagnostic::warning(LEFT_OUT, place, text).hint(hint));
    }
}

/// Whether a repository is this owner's.
fn is_owned(repository: &str, owner: &str) -> bool {
    repository.split_once('/').is_some_and(|(own, _)| own.eq_ignore_ascii_case(owner))
}

#[cfg(test)]
mod tests;
