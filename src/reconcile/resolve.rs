//! What a repository of the hub holds, from its listing and its headers alone, and what a lock keeps of that.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt};

use crate::base::{Digest, one_line};
use crate::ports::{Hub, HubError, HubFile, HubRepository};
use crate::weights::{
    Inspect, Listing, LockedSource, LockedVariant, Ranges, Variant, WeightsError, inspect, is_repository, narrow,
    read_alongside, select,
};

/// Requests of one repository at once; the hub's own limit is over all of them.
const PARALLEL: usize = 8;
/// Files whose headers are begun together.
const ROUND: usize = 64;
/// Most bytes of headers of one repository: tokenizers inside GGUF are the largest.
const MAX_HEADERS: u64 = 1 << 30;
/// Most bytes of one request.
const MAX_READ: u64 = 16 << 20;
/// Largest file that is read whole for its digest. What is larger lies in large-file storage, which tells it.
const MAX_WHOLE: u64 = 64 << 20;

/// Why a source of the hub cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The hub does not give it.
    #[error("{0}")]
    Hub(#[from] HubError),
    /// It holds no weights that flock knows.
    #[error("{repository}: {error}")]
    Weights {
        /// `owner/name`.
        repository: String,
        /// Why.
        error: WeightsError,
    },
    /// What follows `#` is none of what it holds.
    #[error("{repository} has no `{selector}`")]
    Selector {
        /// `owner/name`.
        repository: String,
        /// What was asked for.
        selector: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A file that cannot be pinned.
    #[error("{repository}: {file} {reason}")]
    File {
        /// `owner/name`.
        repository: String,
        /// The file.
        file: String,
        /// Why.
        reason: &'static str,
    },
    /// It says what no reader of a lock would believe.
    #[error("{repository} cannot be pinned: {reason}")]
    Unlockable {
        /// `owner/name`.
        repository: String,
        /// What would be refused.
        reason: String,
    },
}

impl ResolveError {
    /// The nearest remedy, as a sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::Hub(error) => error.hint(),
            Self::Weights { .. } => "name a repository with safetensors and config.json, or with GGUF files".to_owned(),
            Self::Selector { known, .. } if known.len() > 24 => {
                format!("it has: {}, and {} more", known[..24].join(", "), known.len() - 24)
            }
            Self::Selector { known, .. } => format!("it has: {}", known.join(", ")),
            Self::Unlockable { .. } => "take another repository with these weights, or a copy of its files".to_owned(),
            Self::File { .. } => "the repository is incomplete; its owner can tell more".to_owned(),
        }
    }

    /// Whether the same question may have another answer in a moment.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Hub(HubError::Busy { .. } | HubError::Unreachable { .. }))
    }
}

/// A repository at a commit, and the sets of weights in it, best quality first.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The repository.
    pub repository: HubRepository,
    /// The sets that were asked for.
    pub variants: Vec<Variant>,
}

/// Reads what a repository holds at a revision; with a selector, only that.
///
/// # Errors
/// [`ResolveError`]; the listing and every header must be readable.
pub async fn look_on_hub(
    hub: &dyn Hub,
    repository: &str,
    revision: Option<&str>,
    selector: Option<&str>,
) -> Result<Found, ResolveError> {
    let found = hub.repository(repository, revision).await?;
    let refused = |error| ResolveError::Weights { repository: found.repository.clone(), error };
    let whole = Listing::new(found.files.iter().map(|file| (file.name.clone(), file.size_bytes))).map_err(refused)?;
    let listing = selector.map_or_else(|| whole.clone(), |selector| narrow(&whole, selector));
    let read = read_headers(hub, &found, &listing).await;
    let Some(selector) = selector else { return Ok(Found { variants: read?, repository: found }) };
    let variants = match read {
        Ok(variants) => select(variants, selector),
        // A file that is there and cannot be used says more than a list of the others.
        Err(ResolveError::Weights { .. }) if listing == whole => Vec::new(),
        Err(error) => return Err(error),
    };
    if !variants.is_empty() {
        return Ok(Found { repository: found, variants });
    }
    let known: Vec<String> = read_headers(hub, &found, &whole).await?.into_iter().map(|variant| variant.id).collect();
    Err(ResolveError::Selector { repository: found.repository, selector: selector.to_owned(), known })
}

/// Answers the inspection's requests with bytes of the hub.
async fn read_headers(hub: &dyn Hub, found: &HubRepository, listing: &Listing) -> Result<Vec<Variant>, ResolveError> {
    let refused = |error| ResolveError::Weights { repository: found.repository.clone(), error };
    let mut ranges = Ranges::new();
    let mut have: BTreeMap<String, u64> = BTreeMap::new();
    let mut total = 0u64;
    loop {
        let (file, offset, length) = match inspect(listing, &ranges).map_err(refused)? {
            Inspect::Done(variants) => return Ok(variants),
            Inspect::Need { file, offset, length } => (file, offset, length.clamp(1, MAX_READ)),
        };
        let mut wanted = vec![(file.clone(), offset, length)];
        // Shards have their own headers: their first bytes. GGUF files of one model are alike: as far as this one.
        let upto = offset.saturating_add(length);
        for other in read_alongside(listing, &file) {
            if wanted.len() >= ROUND {
                break;
            }
            let known = have.get(&other).copied().unwrap_or(0);
            let end = upto.min(listing.size(&other).unwrap_or(0));
            if known < end && (known == 0 || other.ends_with(".gguf")) {
                wanted.push((other, known, (end - known).min(MAX_READ)));
            }
        }
        let mut answers = stream::iter(wanted)
            .map(|(name, offset, length)| async move {
                let bytes = hub.read(&found.repository, &found.commit, &name, offset, length).await;
                (name, offset, bytes)
            })
            .buffer_unordered(PARALLEL);
        while let Some((name, offset, bytes)) = answers.next().await {
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) if name == file => return Err(error.into()),
                // It is asked for again where it is needed.
                Err(_) => continue,
            };
            total = total.saturating_add(bytes.len() as u64);
            if total > MAX_HEADERS {
                return Err(refused(WeightsError::NoWeights("its headers are longer than any model's".to_owned())));
            }
            ranges.insert(&name, offset, &bytes);
            have.insert(name, offset.saturating_add(bytes.len() as u64));
        }
    }
}

/// What a lock keeps of a repository: every file with its digest.
///
/// # Errors
/// [`ResolveError`]; small files are read whole, since the hub knows the digests of large ones only.
pub async fn pin(
    hub: &dyn Hub,
    source: String,
    repository: &str,
    revision: Option<&str>,
    selector: Option<&str>,
) -> Result<LockedSource, ResolveError> {
    let Found { repository: found, variants } = look_on_hub(hub, repository, revision, selector).await?;
    let by_name: BTreeMap<&str, &HubFile> = found.files.iter().map(|file| (file.name.as_str(), file)).collect();
    let files = variants.iter().flat_map(|v| v.files.iter().chain(&v.projector));
    let wanted: BTreeSet<String> = files.map(|file| file.name.clone()).collect();
    let refused =
        |file: &str, reason| ResolveError::File { repository: found.repository.clone(), file: file.to_owned(), reason };
    let mut digests: BTreeMap<&str, String> = BTreeMap::new();
    let mut unread = Vec::new();
    for name in &wanted {
        let name = name.as_str();
        let file = by_name.get(name).ok_or_else(|| refused(name, "is named by the index and not there"))?;
        match &file.sha256 {
            Some(digest) => {
                let digest = Digest::parse(digest).ok_or_else(|| refused(name, "has a digest that is none"))?;
                digests.insert(name, digest.hex().to_owned());
            }
            None if file.size_bytes > MAX_WHOLE => {
                return Err(refused(name, "has no digest on the hub and is too large to be read for one"));
            }
            None => unread.push(*file),
        }
    }
    let found_ref = &found;
    let mut read = stream::iter(unread)
        .map(|file| async move { (file.name.as_str(), digest(hub, found_ref, file).await) })
        .buffer_unordered(PARALLEL);
    while let Some((name, digest)) = read.next().await {
        digests.insert(name, digest?);
    }
    drop(read);
    let pinned = variants.into_iter().map(|variant| {
        let own = variant
            .files
            .iter()
            .chain(&variant.projector)
            .map(|file| digests.get(file.name.as_str()).cloned().unwrap_or_default());
        let own: Vec<String> = own.collect();
        let first = variant.files.first().map(|file| file.name.clone()).unwrap_or_default();
        LockedVariant::new(variant, own).ok_or_else(|| refused(&first, "has no size"))
    });
    let variants = pinned.collect::<Result<Vec<_>, _>>()?;
    let fit = |text: &str| one_line(text).chars().take(100).collect::<String>();
    let pinned = LockedSource {
        source,
        quantised_from: None,
        license: found.license.as_deref().map(fit).filter(|license| !license.is_empty()),
        gated: found.gated,
        base_models: found.base_models.iter().filter(|name| is_repository(name)).cloned().collect(),
        repository: found.repository,
        commit: found.commit,
        variants,
    };
    match pinned.check() {
        Ok(()) => Ok(pinned),
        Err(error) => Err(ResolveError::Unlockable { repository: pinned.repository, reason: error.message }),
    }
}

/// The digest of a small file, which is read whole.
async fn digest(hub: &dyn Hub, found: &HubRepository, file: &HubFile) -> Result<String, ResolveError> {
    let mut hasher = crate::base::Hasher::new();
    let mut at = 0;
    while at < file.size_bytes {
        let length = (file.size_bytes - at).min(MAX_READ);
        let bytes = hub.read(&found.repository, &found.commit, &file.name, at, length).await?;
        if bytes.is_empty() {
            let reason = format!("{}/{} ends at byte {at} of {}", found.repository, file.name, file.size_bytes);
            return Err(HubError::Nonsense { endpoint: hub.endpoint().to_owned(), reason }.into());
        }
        hasher.update(&bytes);
        at += bytes.len() as u64;
    }
    Ok(hasher.finish().hex().to_owned())
}
