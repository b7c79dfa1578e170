//! The files there are, and the bytes of them that have been supplied.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::WeightsError;
use super::gguf::Header;
use super::names::check_name;

/// Most files a folder may list; a model repository has a few hundred.
const MAX_FILES: usize = 100_000;

/// Files of a folder with their sizes in bytes, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    files: BTreeMap<String, u64>,
    /// What stands before every name in the whole listing: empty, or a folder with its `/`.
    prefix: String,
}

impl Listing {
    /// Takes `(name, size)` pairs; names are relative with `/`.
    ///
    /// # Errors
    /// [`WeightsError::Name`] for a name that is absolute, has `..` or control characters.
    pub fn new<N: Into<String>>(files: impl IntoIterator<Item = (N, u64)>) -> Result<Self, WeightsError> {
        let mut listing = Self::default();
        for (name, size) in files {
            let name = name.into();
            check_name(&name)?;
            if listing.files.len() >= MAX_FILES {
                return Err(WeightsError::NoWeights(format!("more than {MAX_FILES} files")));
            }
            listing.files.insert(name, size);
        }
        Ok(listing)
    }

    /// A file's size, where it is there.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.files.get(name).copied()
    }

    /// All files in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// The files of one folder (with its `/`) and below, named from there; bytes are asked for by their whole names.
    pub(super) fn below(&self, folder: &str) -> Self {
        let inside = self.files.range(folder.to_owned()..).take_while(|(name, _)| name.starts_with(folder));
        let files = inside.map(|(name, size)| (name[folder.len()..].to_owned(), *size)).collect();
        Self { files, prefix: format!("{}{folder}", self.prefix) }
    }

    /// Those files that a predicate keeps.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        let files =
            self.files.iter().filter(|(name, _)| keep(name)).map(|(name, size)| (name.clone(), *size)).collect();
        Self { files, prefix: self.prefix.clone() }
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// The start of a file that has arrived so far. Every header is a prefix, so nothing else is kept.
#[derive(Debug, Clone, Default)]
struct Prefix {
    bytes: Vec<u8>,
    ended: bool,
    /// The GGUF header, once it was read: a folder of many files is not read again for each request.
    gguf: OnceLock<Arc<Header>>,
}

/// Bytes supplied for files.
#[derive(Debug, Clone, Default)]
pub struct Ranges {
    files: BTreeMap<String, Prefix>,
}

impl Ranges {
    /// Nothing supplied yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Supplies bytes of a file from `offset` on, as an [`Inspect::Need`](super::Inspect::Need) asked for them.
    /// A short answer is asked for again from where it ended; an empty one says that the file ends there.
    /// Bytes that leave a gap are dropped, and so asked for again.
    pub fn insert(&mut self, file: &str, offset: u64, bytes: &[u8]) {
        let prefix = self.files.entry(file.to_owned()).or_default();
        let have = prefix.bytes.len() as u64;
        if bytes.is_empty() {
            prefix.ended |= offset <= have;
        } else if offset <= have {
            let known = usize::try_from(have - offset).unwrap_or(usize::MAX);
            if let Some(fresh) = bytes.get(known..) {
                prefix.bytes.extend_from_slice(fresh);
            }
        }
    }

    /// The contiguous start of a file that is known.
    pub(super) fn prefix(&self, file: &str) -> &[u8] {
        self.files.get(file).map_or(&[], |prefix| &prefix.bytes)
    }

    /// A file's GGUF header that was read before.
    pub(super) fn known_gguf(&self, file: &str) -> Option<Arc<Header>> {
        self.files.get(file)?.gguf.get().cloned()
    }

    /// Keeps a file's GGUF header; bytes that come later cannot change it.
    pub(super) fn keep_gguf(&self, file: &str, header: Header) -> Arc<Header> {
        let header = Arc::new(header);
        match self.files.get(file) {
            Some(prefix) => prefix.gguf.get_or_init(|| header).clone(),
            None => header,
        }
    }

    /// Whether the supplier said that the file ends where [`Self::prefix`] does.
    pub(super) fn ended(&self, file: &str) -> bool {
        self.files.get(file).is_some_and(|prefix| prefix.ended)
    }
}

/// Why reading stopped short of an answer.
#[derive(Debug)]
pub(super) enum Stop {
    /// These bytes are needed first.
    Need { file: String, offset: u64, length: u64 },
    /// The file is bad.
    Error(WeightsError),
}

impl From<WeightsError> for Stop {
    fn from(error: WeightsError) -> Self {
        Self::Error(error)
    }
}

/// A file being read: its listing entry and what is there of it.
pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
    /// Its name in the whole listing.
    whole_name: String,
    pub(super) size: u64,
    pub(super) bytes: &'a [u8],
    ended: bool,
}

impl<'a> Reader<'a> {
    /// Opens a listed file.
    pub(super) fn open(listing: &Listing, ranges: &'a Ranges, file: &'a str) -> Result<Self, Stop> {
        let Some(size) = listing.size(file) else {
            return Err(WeightsError::NoWeights(format!("{file} is not there")).into());
        };
        let whole_name = format!("{}{file}", listing.prefix);
        let bytes = ranges.prefix(&whole_name);
        let end = usize::try_from(size).unwrap_or(usize::MAX).min(bytes.len());
        let ended = ranges.ended(&whole_name);
        Ok(Self { file, whole_name, size, bytes: &bytes[..end], ended })
    }

    /// The first `length` bytes, or the request for them (in chunks of at least `chunk`).
    pub(super) fn first(&self, length: u64, chunk: u64, what: &str) -> Result<&'a [u8], Stop> {
        if length > self.size {
            let text = format!("{what} ends at byte {length} of {}", self.size);
            return Err(WeightsError::Truncated { file: self.file.to_owned(), text }.into());
        }
        let have = self.bytes.len() as u64;
        if have >= length {
            return Ok(&self.bytes[..length as usize]);
        }
        if self.ended {
            let text = format!("{what} ends at byte {length}, the file at byte {have}");
            return Err(WeightsError::Truncated { file: self.file.to_owned(), text }.into());
        }
        let upto = length.max(have.saturating_add(chunk)).min(self.size);
        Err(Stop::Need { file: self.whole_name.clone(), offset: have, length: upto - have })
    }

    /// The whole of a small file.
    pub(super) fn whole(&self, limit: u64) -> Result<&'a [u8], Stop> {
        if self.size > limit {
            let text = format!("{} bytes, more than the {limit} that such a file may have", self.size);
            return Err(WeightsError::malformed(self.file, text).into());
        }
        self.first(self.size, self.size, "the file")
    }
}
