//! From a listing to variants: which files are one set of weights, and what is in them.

use std::collections::{BTreeMap, BTreeSet};

use super::config_json::{CONFIG, Config, read_config};
use super::gguf::{self, Header};
use super::gguf_model;
use super::names::{base_name, is_companion, is_projector, shard};
use super::ranges::{Listing, Ranges, Stop};
use super::safetensors::{header_bytes, read_header, read_index};
use super::safetensors_model::{from_headers, from_index};
use super::{Variant, VariantFile, WeightsError};

const INDEX: &str = "model.safetensors.index.json";

/// What [`inspect`] answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Inspect {
    /// These bytes are needed next; the file's size is respected, except that a listing may be wrong.
    Need {
        /// Name in the listing.
        file: String,
        /// First byte.
        offset: u64,
        /// Number of bytes, at least 1. Fewer may be supplied.
        length: u64,
    },
    /// The variants, best quality first.
    Done(Vec<Variant>),
}

/// Reads what weights a folder holds, from headers alone.
///
/// Call it again after every [`Inspect::Need`], with the bytes added to `ranges`. A folder with several GGUF
/// files gives several variants; safetensors give one, and one for every sub-folder with a `config.json` of its own
/// (its `start_file` is that folder). What cannot be used (a missing shard, a broken file) is
/// a note on the others, and an error where nothing else is there.
///
/// # Errors
/// [`WeightsError`] where nothing usable is in the folder, with the reason.
pub fn inspect(listing: &Listing, ranges: &Ranges) -> Result<Inspect, WeightsError> {
    let mut variants = Vec::new();
    let mut problems = Vec::new();
    let sets = [safetensors_sets, gguf_sets];
    for read in sets {
        match read(listing, ranges, &mut variants, &mut problems) {
            Ok(()) => {}
            Err(Stop::Need { file, offset, length }) => return Ok(Inspect::Need { file, offset, length }),
            Err(Stop::Error(error)) => problems.push(error),
        }
    }
    if variants.is_empty() {
        return Err(problems.into_iter().next().unwrap_or_else(|| nothing(listing)));
    }
    for problem in problems {
        for variant in &mut variants {
            variant.notes.push(format!("not used: {problem}"));
        }
    }
    variants.sort_by(|a, b| (a.quality.rank(), &a.id, &a.start_file).cmp(&(b.quality.rank(), &b.id, &b.start_file)));
    make_ids_unique(&mut variants);
    Ok(Inspect::Done(variants))
}

/// Why a folder without weights has none.
fn nothing(listing: &Listing) -> WeightsError {
    let pickled: Vec<&str> = listing
        .iter()
        .map(|(name, _)| name)
        .filter(|name| [".bin", ".pt", ".pth", ".ckpt"].iter().any(|ending| name.ends_with(ending)))
        .take(3)
        .collect();
    if !pickled.is_empty() {
        return WeightsError::Pickled(pickled.join(", "));
    }
    if listing.iter().any(|(name, _)| name.ends_with(".gguf")) {
        return WeightsError::NoWeights("the GGUF files are projectors or adapters".to_owned());
    }
    if listing.size(CONFIG).is_some() {
        return WeightsError::NoWeights(format!("a {CONFIG} without weights or {INDEX}"));
    }
    WeightsError::NoWeights("neither GGUF nor safetensors".to_owned())
}

/// Two files of the same quantisation are told apart by their stem.
fn make_ids_unique(variants: &mut [Variant]) {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for variant in variants.iter() {
        *seen.entry(variant.id.clone()).or_default() += 1;
    }
    for variant in variants {
        if seen.get(&variant.id).is_some_and(|count| *count > 1)
            && let Some(file) = &variant.start_file
        {
            let stem = shard(file, ".gguf").map_or(file.trim_end_matches(".gguf"), |shard| shard.stem);
            variant.id = format!("{}:{stem}", variant.id);
        }
    }
}

/// The safetensors sets of the folder itself and of its sub-folders that are models of their own.
fn safetensors_sets(
    listing: &Listing,
    ranges: &Ranges,
    variants: &mut Vec<Variant>,
    problems: &mut Vec<WeightsError>,
) -> Result<(), Stop> {
    match safetensors_variant(listing, ranges) {
        Ok(found) => variants.extend(found),
        Err(Stop::Error(error)) => problems.push(error),
        Err(need) => return Err(need),
    }
    // What a sub-folder of a usable model has may be anything, such as the adapter or the pooling layer of another.
    let quiet = !variants.is_empty() || listing.iter().any(|(name, _)| name.ends_with(".gguf"));
    for folder in model_folders(listing) {
        match safetensors_variant(&listing.below(folder), ranges) {
            Ok(Some(variant)) => variants.push(moved_below(variant, folder)),
            Ok(None) => {}
            Err(Stop::Error(error)) if !quiet => problems.push(error.below(folder)),
            Err(Stop::Error(_)) => {}
            Err(need) => return Err(need),
        }
    }
    Ok(())
}

/// Sub-folders (with their `/`) that hold a configuration and safetensors. Those of a pipeline of several models
/// (diffusers' `model_index.json`) are parts of it and none of them a language model to serve.
fn model_folders(listing: &Listing) -> BTreeSet<&str> {
    if listing.size("model_index.json").is_some() {
        return BTreeSet::new();
    }
    let folder = |name| -> Option<&str> { Some(&name[..=str::rfind(name, '/')?]) };
    let weighty = listing.iter().filter(|(name, _)| name.ends_with(".safetensors") || base_name(name) == INDEX);
    weighty
        .filter_map(|(name, _)| folder(name))
        .filter(|folder| listing.size(&format!("{folder}{CONFIG}")).is_some())
        .collect()
}

/// A variant of a sub-folder, as the whole listing names its files.
fn moved_below(mut variant: Variant, folder: &str) -> Variant {
    for file in &mut variant.files {
        file.name.insert_str(0, folder);
    }
    variant.start_file = Some(folder.trim_end_matches('/').to_owned());
    variant
}

/// One safetensors set: an index with its shards, shards, `model.safetensors`, another single file, and last
/// `consolidated*`, which repeats the same weights in Mistral's layout.
fn safetensors_variant(listing: &Listing, ranges: &Ranges) -> Result<Option<Variant>, Stop> {
    let Some(set) = safetensors_set(listing, ranges)? else { return Ok(None) };
    if listing.size(CONFIG).is_none() {
        return Err(WeightsError::NoWeights(format!("safetensors without a {CONFIG}")).into());
    }
    let config: Config = read_config(listing, ranges)?;
    let mut files: Vec<VariantFile> = listing
        .iter()
        .filter(|(name, _)| is_companion(name))
        .map(|(name, size)| VariantFile { name: name.to_owned(), size_bytes: Some(size) })
        .collect();
    if listing.size(INDEX).is_some() && set.indexed {
        files.push(VariantFile { name: INDEX.to_owned(), size_bytes: listing.size(INDEX) });
    }
    files.extend(set.files.iter().map(|name| VariantFile { name: name.clone(), size_bytes: listing.size(name) }));
    files.sort_by(|a, b| a.name.cmp(&b.name));
    if set.absent {
        let index = read_index(listing, ranges, INDEX)?;
        return Ok(Some(from_index(&index, INDEX, files, config)?));
    }
    // All headers are there before the first is read, so that many shards are not read many times.
    for name in &set.files {
        header_bytes(listing, ranges, name)?;
    }
    let mut tensors = Vec::new();
    for name in &set.files {
        tensors.extend(read_header(listing, ranges, name)?);
    }
    Ok(Some(from_headers(&tensors, files, config)?))
}

/// The chosen files of a folder.
struct Set {
    files: Vec<String>,
    /// Named by the index.
    indexed: bool,
    /// Named by the index, and none of them listed.
    absent: bool,
}

fn safetensors_set(listing: &Listing, ranges: &Ranges) -> Result<Option<Set>, Stop> {
    let found: Vec<&str> = listing
        .iter()
        .map(|(name, _)| name)
        .filter(|name| name.ends_with(".safetensors") && !name.contains('/') && !name.starts_with("adapter_"))
        .collect();
    if listing.size(INDEX).is_some() {
        let index = read_index(listing, ranges, INDEX)?;
        let files: Vec<String> = index.files.into_iter().collect();
        let present = files.iter().filter(|name| listing.size(name).is_some()).count();
        let plain = found.contains(&"model.safetensors");
        if present == files.len() && !files.is_empty() {
            return Ok(Some(Set { files, indexed: true, absent: false }));
        }
        if present == 0 && !plain && !files.is_empty() {
            return Ok(Some(Set { files, indexed: true, absent: true }));
        }
        if !plain {
            return Err(shards("the index' files", present, files.len()).into());
        }
    }
    let usual: Vec<&str> = found.iter().copied().filter(|name| !name.starts_with("consolidated")).collect();
    if let Some(files) = complete_shards(&usual)? {
        return Ok(Some(Set { files, indexed: false, absent: false }));
    }
    let one = |name: &str| Some(Set { files: vec![name.to_owned()], indexed: false, absent: false });
    match usual.as_slice() {
        _ if usual.contains(&"model.safetensors") => return Ok(one("model.safetensors")),
        [name] => return Ok(one(name)),
        [] => {}
        several => return Err(WeightsError::Ambiguous(several[..several.len().min(4)].join(", ")).into()),
    }
    match found.as_slice() {
        [] => Ok(None),
        [name] => Ok(one(name)),
        several => match complete_shards(several)? {
            Some(files) => Ok(Some(Set { files, indexed: false, absent: false })),
            None => Err(WeightsError::Ambiguous(several[..several.len().min(4)].join(", ")).into()),
        },
    }
}

/// The shards of the set whose stem is `model`, else of the first one; `None` where nothing is sharded.
fn complete_shards(names: &[&str]) -> Result<Option<Vec<String>>, Stop> {
    let mut sets: BTreeMap<(bool, &str, u32), Vec<String>> = BTreeMap::new();
    for name in names {
        if let Some(found) = shard(name, ".safetensors") {
            sets.entry((found.stem != "model", found.stem, found.count)).or_default().push((*name).to_owned());
        }
    }
    let Some(((_, stem, count), files)) = sets.into_iter().next() else { return Ok(None) };
    if files.len() as u64 != u64::from(count) {
        return Err(shards(stem, files.len(), count as usize).into());
    }
    Ok(Some(files))
}

fn shards(name: &str, present: usize, expected: usize) -> WeightsError {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    WeightsError::Shards { name: name.to_owned(), present: count(present), expected: count(expected) }
}

/// Other files whose headers [`inspect`] will ask for once it asks for this one's: the other shards of the set, and of
/// GGUF every other set. Who reads over a network may fetch the first bytes of all of them at once.
pub fn read_alongside(listing: &Listing, file: &str) -> Vec<String> {
    let names = listing.iter().map(|(name, _)| name).filter(|name| *name != file);
    if file.ends_with(".gguf") {
        return names.filter(|name| name.ends_with(".gguf") && !is_projector(name)).map(str::to_owned).collect();
    }
    let Some(own) = shard(file, ".safetensors") else { return Vec::new() };
    let sibling = |name: &&str| shard(name, ".safetensors").is_some_and(|s| (s.stem, s.count) == (own.stem, own.count));
    names.filter(sibling).map(str::to_owned).collect()
}

/// Every GGUF set of the folder, its sub-folders included.
fn gguf_sets(
    listing: &Listing,
    ranges: &Ranges,
    variants: &mut Vec<Variant>,
    problems: &mut Vec<WeightsError>,
) -> Result<(), Stop> {
    let mut sets: BTreeMap<(&str, u32), Vec<&str>> = BTreeMap::new();
    let mut projectors = Vec::new();
    for (name, _) in listing.iter().filter(|(name, _)| name.ends_with(".gguf")) {
        if is_projector(name) {
            projectors.push(name);
        } else if let Some(found) = shard(name, ".gguf") {
            sets.entry((found.stem, found.count)).or_default().push(name);
        } else {
            sets.entry((name, 0)).or_default().push(name);
        }
    }
    let first = variants.len();
    for ((stem, count), files) in sets {
        if count > 0 && files.len() as u64 != u64::from(count) {
            problems.push(shards(stem, files.len(), count as usize));
            continue;
        }
        match gguf_set(listing, ranges, &files) {
            Ok(Some(variant)) => variants.push(variant),
            Ok(None) => {}
            Err(Stop::Error(error)) => problems.push(error),
            Err(need) => return Err(need),
        }
    }
    for variant in &mut variants[first..] {
        // One of them is loaded; the largest bounds it.
        variant.tensors.projector_bytes = projectors.iter().filter_map(|name| listing.size(name)).max().unwrap_or(0);
        variant.projector = projector(&projectors, listing);
    }
    Ok(())
}

/// The projector that is loaded where vision is wanted: one in f16, which every accelerator computes in, else the largest.
fn projector(names: &[&str], listing: &Listing) -> Option<VariantFile> {
    let half = |name: &str| {
        let name = base_name(name).to_ascii_lowercase();
        name.contains("f16") && !name.contains("bf16")
    };
    let best = names.iter().max_by_key(|name| (half(name), listing.size(name), std::cmp::Reverse(**name)))?;
    Some(VariantFile { name: (*best).to_owned(), size_bytes: listing.size(best) })
}

/// Reads one set; `None` where it is no language model.
fn gguf_set(listing: &Listing, ranges: &Ranges, files: &[&str]) -> Result<Option<Variant>, Stop> {
    let mut header = Header::default();
    for (number, name) in files.iter().enumerate() {
        let own = gguf::read_header(listing, ranges, name)?;
        if number == 0 {
            if gguf_model::not_weights(&own) {
                return Ok(None);
            }
            header = Header::clone(&own);
        } else {
            header.tensors.extend(own.tensors.iter().cloned());
        }
    }
    if header.tensors.is_empty() {
        return Err(WeightsError::malformed(files.first().unwrap_or(&""), "no tensors").into());
    }
    let sized = files.iter().map(|name| ((*name).to_owned(), listing.size(name).unwrap_or(0))).collect();
    Ok(Some(gguf_model::variant(sized, &header)?))
}
