//! What `flock lock` changed, as a table and as JSON.

use std::collections::BTreeSet;

use serde::Serialize;

use super::style::table;
use super::words::count;
use crate::base::{Diagnostic, format_bytes};
use crate::reconcile::{Relock, Relocked};
use crate::weights::{LockedModel, LockedSource, LockedVariant};

/// `flock lock --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct LockDocument<'a> {
    /// 1.
    pub format: u32,
    /// Whether flock.lock was written; a file that would not change is not.
    pub written: bool,
    /// The models with sources on the hub, and those whose pins were removed.
    pub models: Vec<ModelPins<'a>>,
    /// What could not be resolved, and what was left out.
    pub diagnostics: &'a [Diagnostic],
}

/// What became of one model's pins.
#[derive(Debug, Clone, Serialize)]
pub struct ModelPins<'a> {
    /// The model.
    pub model: &'a str,
    /// `added`, `changed`, `removed`, `unchanged` or `failed`; what failed keeps what it had.
    pub change: &'static str,
    /// Its repositories, those that are no longer used among them.
    pub sources: Vec<SourcePins<'a>>,
}

/// What became of one repository.
#[derive(Debug, Clone, Serialize)]
pub struct SourcePins<'a> {
    /// As the config writes it.
    pub source: &'a str,
    /// `added`, `changed`, `removed` or `unchanged`.
    pub change: &'static str,
    /// `owner/name`.
    pub repository: &'a str,
    /// The repository it was quantised from, where it was found through `weights-from`.
    pub quantised_from: Option<&'a str>,
    /// What was pinned.
    pub was_commit: Option<&'a str>,
    /// What is pinned.
    pub commit: Option<&'a str>,
    /// From the model card.
    pub license: Option<&'a str>,
    /// Whether its files are only for those who accepted its terms.
    pub gated: bool,
    /// The sets of weights that are pinned.
    pub variants: Vec<VariantPin<'a>>,
    /// Sets that were pinned and are not any more.
    pub gone: Vec<&'a str>,
}

/// One set of weights.
#[derive(Debug, Clone, Serialize)]
pub struct VariantPin<'a> {
    /// Its id.
    pub id: &'a str,
    /// Bytes of its files.
    pub download_bytes: u64,
    /// Whether it was not pinned before.
    pub new: bool,
}

impl<'a> LockDocument<'a> {
    /// The document of a run.
    pub fn of(relocked: &'a Relocked, written: bool) -> Self {
        let models = relocked.models.iter().map(ModelPins::of).collect();
        Self { format: 1, written, models, diagnostics: &relocked.findings }
    }

    /// Models by what became of them.
    pub fn count(&self, change: &str) -> usize {
        self.models.iter().filter(|model| model.change == change).count()
    }
}

impl<'a> ModelPins<'a> {
    fn of(relock: &'a Relock) -> Self {
        let sources = |model: &'a Option<LockedModel>| model.iter().flat_map(|model| &model.sources);
        let same =
            |a: &LockedSource, b: &LockedSource| (&a.source, &a.quantised_from) == (&b.source, &b.quantised_from);
        let mut rows: Vec<SourcePins<'a>> = Vec::new();
        for is in sources(&relock.is) {
            rows.push(SourcePins::of(sources(&relock.was).find(|was| same(was, is)), Some(is)));
        }
        for was in sources(&relock.was).filter(|was| !sources(&relock.is).any(|is| same(was, is))) {
            rows.push(SourcePins::of(Some(was), None));
        }
        let change = match (&relock.was, &relock.is) {
            _ if relock.failed => "failed",
            (None, _) => "added",
            (_, None) => "removed",
            (was, is) if was == is => "unchanged",
            _ => "changed",
        };
        Self { model: &relock.model, change, sources: rows }
    }
}

impl<'a> SourcePins<'a> {
    fn of(was: Option<&'a LockedSource>, is: Option<&'a LockedSource>) -> Self {
        let ids = |source: Option<&'a LockedSource>| -> BTreeSet<&'a str> {
            source.iter().flat_map(|source| &source.variants).map(|variant| variant.id.as_str()).collect()
        };
        let (before, after) = (ids(was), ids(is));
        let variant = |variant: &'a LockedVariant| VariantPin {
            id: &variant.id,
            download_bytes: variant.download_bytes,
            new: !before.contains(variant.id.as_str()),
        };
        let shown = is.or(was);
        Self {
            source: shown.map_or("", |source| &source.source),
            change: match (was, is) {
                (None, _) => "added",
                (_, None) => "removed",
                (was, is) if was == is => "unchanged",
                _ => "changed",
            },
            repository: shown.map_or("", |source| &source.repository),
            quantised_from: shown.and_then(|source| source.quantised_from.as_deref()),
            was_commit: was.map(|source| source.commit.as_str()),
            commit: is.map(|source| source.commit.as_str()),
            license: shown.and_then(|source| source.license.as_deref()),
            gated: shown.is_some_and(|source| source.gated),
            variants: is.iter().flat_map(|source| &source.variants).map(variant).collect(),
            gone: before.difference(&after).copied().collect(),
        }
    }

    fn commits(&self) -> String {
        let short = |commit: &str| commit.get(..10).unwrap_or(commit).to_owned();
        match (self.was_commit, self.commit) {
            (Some(was), Some(is)) if was != is => format!("{} -> {}", short(was), short(is)),
            (was, is) => is.or(was).map(short).unwrap_or_default(),
        }
    }

    /// What is pinned: a few by name, many by number and span; and what came and went.
    fn what(&self) -> String {
        let sized = |variant: &VariantPin<'_>| format!("{} {}", variant.id, format_bytes(variant.download_bytes));
        let sizes = || self.variants.iter().map(|variant| variant.download_bytes);
        let mut text = match (self.variants.as_slice(), sizes().min(), sizes().max()) {
            (few, ..) if few.len() <= 3 => few.iter().map(sized).collect::<Vec<_>>().join(", "),
            (many, Some(least), Some(most)) => {
                format!("{}, {} to {}", count(many.len(), "variant"), format_bytes(least), format_bytes(most))
            }
            _ => String::new(),
        };
        if self.change == "changed" {
            let new =
                self.variants.iter().filter(|variant| variant.new).map(|variant| format!("; new: {}", variant.id));
            text.extend(new);
        }
        if self.change != "removed" {
            text.extend(self.gone.iter().map(|id| format!("; gone: {id}")));
        }
        if self.gated {
            text.push_str(if text.is_empty() { "gated" } else { "; gated" });
        }
        text
    }
}

/// What changed, a repository a line, and how much of what.
pub fn lock_text(document: &LockDocument<'_>) -> String {
    let mut rows = Vec::new();
    for model in document.models.iter().filter(|model| model.change != "unchanged") {
        let mut lead = [model.model, model.change];
        let moved = model.sources.iter().filter(|source| source.change != "unchanged" && model.change != "failed");
        for source in moved {
            let repository = match source.change {
                change if change == model.change || lead[0].is_empty() && change == "changed" => {
                    source.repository.to_owned()
                }
                change => format!("{} ({change})", source.repository),
            };
            rows.push(vec![lead[0].to_owned(), lead[1].to_owned(), repository, source.commits(), source.what()]);
            lead = ["", ""];
        }
        if !lead[0].is_empty() {
            rows.push(vec![lead[0].to_owned(), lead[1].to_owned(), String::new(), String::new(), String::new()]);
        }
    }
    let mut out = String::new();
    if !rows.is_empty() {
        out.push_str(&table(&["MODEL", "", "REPOSITORY", "COMMIT", "WEIGHTS"], &rows));
        out.push('\n');
    }
    let counts: Vec<String> = ["added", "changed", "removed", "failed", "unchanged"]
        .into_iter()
        .filter(|change| document.count(change) > 0)
        .map(|change| format!("{} {change}", document.count(change)))
        .collect();
    let counts = if counts.is_empty() { "no model is on the hub".to_owned() } else { counts.join(", ") };
    let done = if document.written { "written" } else { "not changed" };
    out.push_str(&format!("flock.lock {done}: {counts}\n"));
    out
}
