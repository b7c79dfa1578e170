//! SHA-256 digests, written `sha256:<64 hex digits>`.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest in its written form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest of a value's JSON. Maps must be sorted (`BTreeMap`), so that equal values digest equally.
    pub fn of_json(value: &impl Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("values that are digested have string keys and finite numbers");
        Self::of(&bytes)
    }

    /// Reads the written form; `None` unless it is `sha256:` and 64 lowercase hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let valid = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        valid.then(|| Self(text.to_owned()))
    }

    /// The hex digits without the prefix.
    pub fn hex(&self) -> &str {
        self.0.strip_prefix("sha256:").unwrap_or(&self.0)
    }

    /// The first `n` hex digits, for names that people read.
    pub fn short(&self, n: usize) -> &str {
        let hex = self.hex();
        // One that was read from a file may hold anything.
        hex.get(..n).unwrap_or(hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A digest in the making, for files that do not fit in memory.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Nothing hashed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes added.
    pub fn finish(self) -> Digest {
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in self.0.finalize() {
            text.push_str(&format!("{byte:02x}"));
        }
        Digest(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_the_empty_string_is_the_published_one() {
        let empty = Digest::of(b"");
        assert_eq!(empty.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(Digest::parse(&empty.to_string()), Some(empty.clone()));
        assert_eq!(Digest::parse("sha256:zz"), None);
        assert_eq!((empty.short(4), empty.short(100)), ("e3b0", empty.hex()));
        let foreign: Digest = serde_json::from_str("\"sha256:a→b\"").expect("a string");
        assert_eq!(foreign.short(2), "a→b");
    }
}
