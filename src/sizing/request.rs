//! `--accelerator "24GiB"`, `"2x24GiB"`, `"RTX 4090"`, `"4xA100-SXM4-80GB"`.

use super::accelerators::{AcceleratorSpec, specification};
use crate::base::{UnitError, parse_bytes};

/// Accelerators to judge a size against.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceleratorRequest {
    /// As it was written.
    pub text: String,
    /// How many.
    pub count: u32,
    /// Total memory of one.
    pub memory_bytes: u64,
    /// The row it names, where it is a name.
    pub specification: Option<&'static AcceleratorSpec>,
}

/// Why a text names no accelerator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A memory size with a bad number or unit.
    #[error("accelerator {text:?}: {source}")]
    Memory {
        /// As written.
        text: String,
        /// What is wrong.
        source: UnitError,
    },
    /// A name that is not in the table.
    #[error("accelerator {0:?} is neither a memory size such as \"24GiB\" nor a known name")]
    Unknown(String),
    /// A unified one, whose memory is the host's.
    #[error("accelerator {0:?} shares the host's memory; give the size instead, such as \"121GiB\"")]
    Unified(String),
    /// A count of 0 or beyond 1024.
    #[error("accelerator {0:?}: the count must be from 1 to 1024")]
    Count(String),
}

/// Reads one request.
///
/// # Errors
/// [`RequestError`], with the text as written.
pub fn parse_accelerator_request(text: &str) -> Result<AcceleratorRequest, RequestError> {
    let trimmed = text.trim();
    let (count, what) = match trimmed.split_once(['x', 'X', '×']) {
        Some((count, what)) if !count.is_empty() && count.trim().bytes().all(|b| b.is_ascii_digit()) => {
            let count = count.trim().parse().ok().filter(|count| (1..=1024).contains(count));
            (count.ok_or_else(|| RequestError::Count(text.to_owned()))?, what.trim())
        }
        _ => (1, trimmed),
    };
    let request =
        |memory_bytes, specification| AcceleratorRequest { text: text.to_owned(), count, memory_bytes, specification };
    match parse_bytes(what) {
        Ok(bytes) if bytes.0 > 0 => Ok(request(bytes.0, None)),
        Ok(_) => Err(RequestError::Unknown(text.to_owned())),
        Err(source) => match specification(what) {
            Some(found) => match found.memory_bytes {
                Some(memory) => Ok(request(memory, Some(found))),
                None => Err(RequestError::Unified(text.to_owned())),
            },
            None if what.starts_with(|c: char| c.is_ascii_digit()) => {
                Err(RequestError::Memory { text: text.to_owned(), source })
            }
            None => Err(RequestError::Unknown(text.to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{GIB, MIB};

    #[test]
    fn counts_sizes_and_names() {
        let parse = |text| parse_accelerator_request(text).map(|found| (found.count, found.memory_bytes));
        assert_eq!(parse("24GiB"), Ok((1, 24 * GIB)));
        assert_eq!(parse("2x24GiB"), Ok((2, 24 * GIB)));
        assert_eq!(parse("4 x RTX 4090"), Ok((4, 24_564 * MIB)));
        assert_eq!(parse("NVIDIA RTX A6000"), Ok((1, 49_140 * MIB)));
        assert!(matches!(parse("24"), Err(RequestError::Memory { .. })));
        assert!(matches!(parse("0x24GiB"), Err(RequestError::Count(_))));
        assert!(matches!(parse("NVIDIA GB10"), Err(RequestError::Unified(_))));
        assert!(matches!(parse("quantum"), Err(RequestError::Unknown(_))));
    }
}
