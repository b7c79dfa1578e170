//! `flock.lock`: what the hub had for each model of the config, pinned for reviews, CI and plans without network.
//!
//! JSON, in the order of this file's types, laid out so that a change shows as few lines (`print`). It lies in a
//! repository that others may write to, so its reader believes nothing: names, digests, counts and sums are checked,
//! and what is refused is refused with its line.

mod print;
mod strict;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::gguf_model::MAX_LAYERS;
use super::{Architecture, PerLayer, Quantisation, Tensors, Variant, VariantFile};
use crate::base::{Quality, WeightFormat, kept_path_problem, one_line};
use strict::Strict;

/// Its name, at the root of the config repository.
pub const LOCK_FILE: &str = "flock.lock";
/// The largest lock that is read: thousands of variants.
pub const MAX_LOCK_BYTES: u64 = 32 << 20;

/// The version of the format that is written and read.
const FORMAT: u32 = 1;
/// Most files of one variant; a model of 700 GB in 4 GB shards has 163.
const MAX_FILES: usize = 10_000;
/// Most notes that are kept of one variant.
const MAX_NOTES: usize = 8;
/// Larger than any file of weights.
const MAX_FILE_BYTES: u64 = 1 << 46;

/// What is pinned, by model.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Lock {
    /// The models, by the name the config gives them.
    pub models: BTreeMap<String, LockedModel>,
}

/// What is pinned of one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedModel {
    /// The owners whose quantisations were looked for, as the config ordered them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights_from: Vec<String>,
    /// The sources that the config names, in its order, then the quantisations that were found.
    pub sources: Vec<LockedSource>,
}

/// One repository at one commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedSource {
    /// As the config writes it: `hf:owner/name[@revision][#file-or-quantisation]`.
    #[serde(deserialize_with = "hub_source")]
    pub source: String,
    /// The repository that this one was quantised from, where it was found through `weights-from`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "base")]
    pub quantised_from: Option<String>,
    /// `owner/name` as the hub called it.
    #[serde(deserialize_with = "repository")]
    pub repository: String,
    /// Commit, 40 hex digits.
    #[serde(deserialize_with = "commit")]
    pub commit: String,
    /// From the model card.
    pub license: Option<String>,
    /// Whether its files are only for those who accepted its terms.
    pub gated: bool,
    /// What the model card says it was made from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub base_models: Vec<String>,
    /// The sets of weights in it, best quality first.
    #[serde(deserialize_with = "some")]
    pub variants: Vec<LockedVariant>,
}

/// One set of weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawVariant")]
pub struct LockedVariant {
    /// As [`Variant::id`].
    pub id: String,
    /// As [`Variant::quality`].
    pub quality: Quality,
    /// As [`Variant::format`].
    pub format: WeightFormat,
    /// As [`Variant::start_file`].
    pub start_file: Option<String>,
    /// Bytes of all files.
    pub download_bytes: u64,
    /// The files, sorted by name.
    pub files: Vec<LockedFile>,
    /// As [`Variant::quantisation`].
    pub quantisation: Option<Quantisation>,
    /// As [`Variant::tensors`].
    pub tensors: Tensors,
    /// As [`Variant::architecture`].
    pub architecture: Architecture,
    /// As [`Variant::projector`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projector: Option<LockedFile>,
    /// As [`Variant::notes`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One file of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedFile {
    /// Path inside the repository, with `/`.
    #[serde(deserialize_with = "file_name")]
    pub name: String,
    /// Its size.
    #[serde(deserialize_with = "file_size")]
    pub size_bytes: u64,
    /// 64 hex digits.
    #[serde(deserialize_with = "sha256")]
    pub sha256: String,
}

/// Why a lock cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LockError {
    /// 1-based.
    pub line: usize,
    /// 1-based.
    pub column: usize,
    /// What is wrong, a lowercase fragment.
    pub message: String,
    /// What to do, a sentence.
    pub hint: &'static str,
}

/// For whatever is wrong with the file.
const WRITTEN_ANEW: &str = "`flock lock` writes this file; restore it from git, or delete it and run `flock lock`";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "format")]
    _format: u32,
    models: BTreeMap<String, LockedModel>,
}

/// All that is read of a file of another version.
#[derive(Deserialize)]
struct Head {
    format: Option<u32>,
}

impl Lock {
    /// Reads a lock.
    ///
    /// # Errors
    /// [`LockError`] with the line, for what flock would not have written.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        if let Some(at) = text.lines().position(|line| line.starts_with("<<<<<<<") || line.starts_with(">>>>>>>")) {
            return Err(LockError {
                line: at + 1,
                column: 1,
                message: "a merge conflict is left in it".to_owned(),
                hint: "take either side of it, then run `flock lock`, which adds what the other side had",
            });
        }
        serde_json::from_str::<Strict>(text).map_err(|error| unreadable(&error))?;
        match serde_json::from_str::<Head>(text).map_err(|error| unreadable(&error))?.format {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => {
                let message = format!("it has format {newer}, and this version of flock reads format {FORMAT}");
                return Err(LockError { line: 1, column: 1, message, hint: "use the version of flock that wrote it" });
            }
            _ => {
                let message = format!("it does not say `\"format\": {FORMAT}`");
                return Err(LockError { line: 1, column: 1, message, hint: WRITTEN_ANEW });
            }
        }
        let document: Document = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
        Ok(Self { models: document.models })
    }

    /// The file's text: the same lock gives the same bytes.
    pub fn render(&self) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            format: u32,
            models: &'a BTreeMap<String, LockedModel>,
        }
        let compact = serde_json::to_string(&Written { format: FORMAT, models: &self.models })
            .expect("plain values with texts as keys");
        print::pretty(&compact)
    }
}

fn unreadable(error: &serde_json::Error) -> LockError {
    let text = error.to_string();
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned();
    LockError { line: error.line().max(1), column: error.column().max(1), message, hint: WRITTEN_ANEW }
}

impl LockedModel {
    /// What was found in a source of the config.
    pub fn source(&self, text: &str) -> Option<&LockedSource> {
        self.sources.iter().find(|known| known.quantised_from.is_none() && known.source == text)
    }

    /// The sources that the config named when this was written.
    pub fn named(&self) -> impl Iterator<Item = &LockedSource> {
        self.sources.iter().filter(|known| known.quantised_from.is_none())
    }

    /// The quantisations that were found, in this order of owners, then by repository.
    pub fn quantised(&self, owners: &[String]) -> Vec<&LockedSource> {
        let mut found: Vec<&LockedSource> =
            self.sources.iter().filter(|known| known.quantised_from.is_some()).collect();
        let rank = |source: &LockedSource| owners.iter().position(|owner| owner.eq_ignore_ascii_case(source.owner()));
        found.sort_by(|a, b| (rank(a), &a.repository).cmp(&(rank(b), &b.repository)));
        found
    }
}

impl LockedSource {
    /// Whether a lock with it could be read again: what the hub says is held against the same rules.
    ///
    /// # Errors
    /// What the reader would refuse.
    pub fn check(&self) -> Result<(), LockError> {
        let model = LockedModel { weights_from: Vec::new(), sources: vec![self.clone()] };
        let lock = Lock { models: BTreeMap::from([("model".to_owned(), model)]) };
        Lock::parse(&lock.render()).map(drop)
    }

    /// Who owns the repository.
    pub fn owner(&self) -> &str {
        self.repository.split('/').next().unwrap_or_default()
    }
}

impl LockedVariant {
    /// A variant whose files have these digests (64 hex digits), in their order; `None` where one has no size. The
    /// projector's comes after those of the files; it is left out where there is none for it.
    pub fn new(variant: Variant, digests: impl IntoIterator<Item = String>) -> Option<Self> {
        let mut digests = digests.into_iter();
        let files = variant
            .files
            .into_iter()
            .zip(digests.by_ref())
            .map(|(file, sha256)| Some(LockedFile { name: file.name, size_bytes: file.size_bytes?, sha256 }));
        let mut files = files.collect::<Option<Vec<_>>>()?;
        let projector = variant.projector.and_then(|file| {
            let sha256 = digests.next()?;
            Some(LockedFile { name: file.name, size_bytes: file.size_bytes?, sha256 })
        });
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Self {
            id: variant.id,
            quality: variant.quality,
            format: variant.format,
            start_file: variant.start_file,
            download_bytes: files.iter().fold(0, |sum, file| sum + file.size_bytes),
            files,
            quantisation: variant.quantisation,
            tensors: variant.tensors,
            architecture: variant.architecture,
            projector,
            notes: few(variant.notes),
        })
    }

    /// As sizing takes it.
    pub fn variant(&self) -> Variant {
        let file = |file: &LockedFile| VariantFile { name: file.name.clone(), size_bytes: Some(file.size_bytes) };
        Variant {
            id: self.id.clone(),
            quality: self.quality.clone(),
            format: self.format,
            start_file: self.start_file.clone(),
            files: self.files.iter().map(file).collect(),
            download_bytes: self.download_bytes,
            tensors: self.tensors.clone(),
            architecture: self.architecture.clone(),
            quantisation: self.quantisation.clone(),
            projector: self.projector.as_ref().map(file),
            notes: self.notes.clone(),
        }
    }
}

/// Notes of a repository with a thousand broken files say as much in a few.
fn few(mut notes: Vec<String>) -> Vec<String> {
    let all = notes.len();
    notes.truncate(MAX_NOTES);
    for note in &mut notes {
        *note = one_line(note).chars().take(500).collect();
    }
    if all > MAX_NOTES {
        notes.push(format!("and {} more of the kind", all - MAX_NOTES));
    }
    notes
}

// Each field is checked where it stands, so that the error has its line.

fn file_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    match kept_path_problem(&name) {
        // The name may be anything: escaped, it is only long.
        Some(problem) => Err(Error::custom(format!("the file name {name:?} {problem}"))),
        None => Ok(name),
    }
}

fn file_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let size = u64::deserialize(deserializer)?;
    if size > MAX_FILE_BYTES { Err(Error::custom(format!("{size} bytes, more than any file has"))) } else { Ok(size) }
}

fn sha256<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    hex(deserializer, 64, "the sha256")
}

fn commit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    hex(deserializer, 40, "the commit")
}

fn hex<'de, D: Deserializer<'de>>(deserializer: D, length: usize, what: &str) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if is_hex(&text, length) {
        Ok(text)
    } else {
        Err(Error::custom(format!("{what} is not {length} lowercase hex digits")))
    }
}

fn hub_source<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.starts_with("hf:") { Ok(text) } else { Err(Error::custom(format!("`{text}` is no source on the hub"))) }
}

fn repository<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if is_repository(&name) { Ok(name) } else { Err(Error::custom(format!("`{name}` is no repository of the hub"))) }
}

fn base<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    repository(deserializer).map(Some)
}

fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LockedVariant>, D::Error> {
    let variants = Vec::deserialize(deserializer)?;
    if variants.is_empty() { Err(Error::custom("a source without variants")) } else { Ok(variants) }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Whether a text is `owner/name` as the hub spells them.
pub fn is_repository(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['.', '-'])
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    text.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVariant {
    id: String,
    quality: Quality,
    format: WeightFormat,
    start_file: Option<String>,
    download_bytes: u64,
    files: Vec<LockedFile>,
    quantisation: Option<Quantisation>,
    tensors: Tensors,
    architecture: Architecture,
    #[serde(default)]
    projector: Option<LockedFile>,
    #[serde(default)]
    notes: Vec<String>,
}

impl TryFrom<RawVariant> for LockedVariant {
    type Error = String;

    fn try_from(raw: RawVariant) -> Result<Self, String> {
        let refused = |text: &str| Err(format!("variant `{}`: {text}", raw.id));
        if raw.id.is_empty() || raw.id.len() > 1200 {
            return Err("a variant's id is empty or too long".to_owned());
        }
        if raw.files.is_empty() || raw.files.len() > MAX_FILES {
            return refused("it has no files, or more than any model has");
        }
        if !raw.files.is_sorted_by(|a, b| a.name < b.name) {
            return refused("its files are not sorted by name, or one is there twice");
        }
        if raw.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size_bytes)) != Some(raw.download_bytes) {
            return refused("download_bytes is not the sum of its files");
        }
        if let Some(start) = &raw.start_file {
            let folder = format!("{start}/");
            if !raw.files.iter().any(|file| file.name == *start || file.name.starts_with(&folder)) {
                return refused("start_file is none of its files");
            }
        }
        if let Some(problem) = impossible(&raw.architecture, &raw.tensors) {
            return refused(problem);
        }
        Ok(Self {
            id: raw.id,
            quality: raw.quality,
            format: raw.format,
            start_file: raw.start_file,
            download_bytes: raw.download_bytes,
            files: raw.files,
            quantisation: raw.quantisation,
            tensors: raw.tensors,
            architecture: raw.architecture,
            projector: raw.projector,
            notes: raw.notes,
        })
    }
}

/// What no header could have said: a lock that was edited must not make a model look smaller than nothing.
fn impossible(architecture: &Architecture, tensors: &Tensors) -> Option<&'static str> {
    let layers = architecture.layers;
    let per_layer = |values: &PerLayer| matches!(values, PerLayer::Each(each) if each.len() > MAX_LAYERS as usize);
    if !(1..=MAX_LAYERS).contains(&layers) || architecture.hidden == 0 {
        return Some("an architecture without layers or width, or with more layers than any");
    }
    if tensors.layer_bytes.len() > MAX_LAYERS as usize
        || per_layer(&architecture.heads)
        || per_layer(&architecture.kv_heads)
        || architecture.sliding.as_ref().is_some_and(|sliding| sliding.layers.len() > MAX_LAYERS as usize)
    {
        return Some("more layers than any model has");
    }
    let parts = [tensors.embedding_bytes, tensors.output_bytes, tensors.vision_bytes];
    let sum = parts.iter().chain(&tensors.layer_bytes).try_fold(0u64, |sum, part| sum.checked_add(*part));
    if sum.is_none_or(|sum| sum > tensors.total_bytes) {
        return Some("its tensors are larger in parts than together");
    }
    let no_cache = architecture.kv_heads.max() == 0 && architecture.constant_state.is_none();
    no_cache.then_some("neither KV heads nor a constant state")
}
