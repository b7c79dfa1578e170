//! The GGUF container: metadata and tensor infos of one file, read from its start.
//!
//! Source: `docs/gguf.md` of the ggml repository; versions 2 and 3 (little-endian).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::WeightsError;
use super::ggml::{GgmlType, ggml_type};
use super::ranges::{Listing, Ranges, Reader, Stop};
use crate::base::is_obeyed;

/// First request; most headers with a small vocabulary fit.
const CHUNK: u64 = 1 << 20;
/// Largest header: metadata of the largest vocabularies is about 20 MiB.
const MAX_HEADER: u64 = 256 << 20;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_METADATA: u64 = 1 << 16;
const MAX_KEY: u64 = 1 << 16;
const MAX_TENSOR_NAME: u64 = 1 << 10;
/// Arrays of numbers that are kept; the rest (tokens, scores) is only counted.
const MAX_KEPT_ARRAY: u64 = 4096;
const MAX_KEPT_STRING: usize = 4096;
const MAX_DIMENSIONS: u32 = 8;
const MAX_DEPTH: u32 = 4;

/// A metadata value, as far as sizing can use it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(u64),
    Negative,
    Float,
    Bool(bool),
    Text(String),
    Numbers(Vec<u64>),
    /// An array that is not kept, with its length.
    Counted(u64),
}

/// A tensor as the header describes it.
#[derive(Debug, Clone)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    pub(super) kind: GgmlType,
    pub(super) dimensions: Vec<u64>,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

/// One file's header.
#[derive(Debug, Clone, Default)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: Vec<TensorInfo>,
}

impl Header {
    /// A number by key; also an array's first, as llama.cpp reads either.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Value::Number(value) => Some(*value),
            Value::Numbers(values) => values.first().copied(),
            _ => None,
        }
    }

    /// A text by key.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads a file's header, once.
pub(super) fn read_header(listing: &Listing, ranges: &Ranges, file: &str) -> Result<Arc<Header>, Stop> {
    match ranges.known_gguf(file) {
        Some(known) => Ok(known),
        None => Ok(ranges.keep_gguf(file, parse_header(listing, ranges, file)?)),
    }
}

fn parse_header(listing: &Listing, ranges: &Ranges, file: &str) -> Result<Header, Stop> {
    let reader = Reader::open(listing, ranges, file)?;
    let mut cursor = Cursor { reader: &reader, at: 0 };
    if cursor.take(4, "the magic number")? != b"GGUF" {
        return Err(cursor.bad("not a GGUF file"));
    }
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        let big_endian = version.swap_bytes() == 3;
        let text = if big_endian { "big-endian GGUF".to_owned() } else { format!("GGUF version {version}") };
        return Err(cursor.bad(format!("{text} is not supported")));
    }
    let tensor_count = cursor.u64()?;
    let metadata_count = cursor.u64()?;
    if tensor_count > MAX_TENSORS || metadata_count > MAX_METADATA {
        return Err(cursor.bad(format!("{tensor_count} tensors and {metadata_count} metadata entries")));
    }
    let mut header = Header::default();
    for _ in 0..metadata_count {
        let key = cursor.text(MAX_KEY, "a metadata key")?;
        let kind = cursor.u32()?;
        let value = cursor.value(kind, 0)?;
        header.metadata.insert(key, value);
    }
    let mut data_end = 0u64;
    for _ in 0..tensor_count {
        let (tensor, end) = cursor.tensor()?;
        data_end = data_end.max(end);
        header.tensors.push(tensor);
    }
    // A cut-short download still has a whole header; its size gives it away.
    let alignment = header.number("general.alignment").unwrap_or(32).clamp(1, 1 << 20);
    let start = cursor.at.next_multiple_of(alignment);
    if tensor_count > 0 && start.checked_add(data_end).is_none_or(|end| end > reader.size) {
        let text = format!("the tensors need {} bytes of {}", start.saturating_add(data_end), reader.size);
        return Err(WeightsError::Truncated { file: file.to_owned(), text }.into());
    }
    Ok(header)
}

struct Cursor<'r, 'a> {
    reader: &'r Reader<'a>,
    at: u64,
}

impl<'a> Cursor<'_, 'a> {
    fn bad(&self, text: impl Into<String>) -> Stop {
        WeightsError::malformed(self.reader.file, text).into()
    }

    fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(length).filter(|end| *end <= MAX_HEADER);
        let Some(end) = end else {
            return Err(self.bad(format!("{what} makes the header longer than {MAX_HEADER} bytes")));
        };
        // Doubling keeps the number of round trips logarithmic.
        let chunk = CHUNK.max(self.reader.bytes.len() as u64);
        let bytes = self.reader.first(end, chunk, what)?;
        let start = self.at as usize;
        self.at = end;
        Ok(&bytes[start..])
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        let bytes = self.take(4, "a number")?;
        Ok(u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        let bytes = self.take(8, "a number")?;
        Ok(u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn text(&mut self, limit: u64, what: &str) -> Result<String, Stop> {
        let length = self.u64()?;
        if length > limit {
            return Err(self.bad(format!("{what} of {length} bytes")));
        }
        let bytes = self.take(length, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.chars().any(|c| c.is_control() || is_obeyed(c)) => Ok(text.to_owned()),
            _ => Err(self.bad(format!("{what} is not printable UTF-8"))),
        }
    }

    /// One value of a type; `depth` counts the arrays around it.
    fn value(&mut self, kind: u32, depth: u32) -> Result<Value, Stop> {
        Ok(match kind {
            0 => Value::Number(u64::from(self.take(1, "a value")?[0])),
            1 => signed(i64::from(self.take(1, "a value")?[0] as i8)),
            2 => Value::Number(u64::from(u16::from_le_bytes(self.take(2, "a value")?.try_into().unwrap_or_default()))),
            3 => signed(i64::from(i16::from_le_bytes(self.take(2, "a value")?.try_into().unwrap_or_default()))),
            4 => Value::Number(u64::from(self.u32()?)),
            5 => signed(i64::from(self.u32()?.cast_signed())),
            6 => {
                self.take(4, "a value")?;
                Value::Float
            }
            7 => Value::Bool(self.take(1, "a value")?[0] != 0),
            8 => {
                let length = self.u64()?;
                let bytes = self.take(length, "a text")?;
                Value::Text(String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_KEPT_STRING)]).into_owned())
            }
            9 => self.array(depth)?,
            10 => Value::Number(self.u64()?),
            11 => signed(self.u64()?.cast_signed()),
            12 => {
                self.take(8, "a value")?;
                Value::Float
            }
            other => return Err(self.bad(format!("metadata type {other}"))),
        })
    }

    fn array(&mut self, depth: u32) -> Result<Value, Stop> {
        if depth >= MAX_DEPTH {
            return Err(self.bad("metadata arrays nested too deep"));
        }
        let kind = self.u32()?;
        let count = self.u64()?;
        let width = match kind {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            8 | 9 => None,
            other => return Err(self.bad(format!("metadata array of type {other}"))),
        };
        if let Some(width) = width {
            if count <= MAX_KEPT_ARRAY {
                let mut numbers = Vec::new();
                for _ in 0..count {
                    numbers.push(match self.value(kind, depth + 1)? {
                        Value::Number(number) => number,
                        Value::Bool(flag) => u64::from(flag),
                        _ => 0,
                    });
                }
                return Ok(Value::Numbers(numbers));
            }
            let Some(length) = count.checked_mul(width) else {
                return Err(self.bad(format!("a metadata array of {count} entries")));
            };
            self.take(length, "a metadata array")?;
            return Ok(Value::Counted(count));
        }
        // Each text or array takes at least 8 bytes, so the header's limit bounds this loop.
        for _ in 0..count {
            if kind == 8 {
                let length = self.u64()?;
                self.take(length, "a text")?;
            } else {
                self.array(depth + 1)?;
            }
        }
        Ok(Value::Counted(count))
    }

    /// A tensor info and where its data end, counted from the start of the data.
    fn tensor(&mut self) -> Result<(TensorInfo, u64), Stop> {
        let name = self.text(MAX_TENSOR_NAME, "a tensor name")?;
        let count = self.u32()?;
        if count > MAX_DIMENSIONS {
            return Err(self.bad(format!("tensor {name} has {count} dimensions")));
        }
        let mut dimensions = Vec::new();
        for _ in 0..count {
            dimensions.push(self.u64()?);
        }
        let id = self.u32()?;
        let offset = self.u64()?;
        let Some(kind) = ggml_type(id) else {
            return Err(self.bad(format!("tensor {name} has the unknown type {id}")));
        };
        let elements = dimensions.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        let bytes = kind.tensor_bytes(&dimensions);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        match (elements, bytes, end) {
            (Some(elements), Some(bytes), Some(end)) => {
                Ok((TensorInfo { name, kind, dimensions, elements, bytes }, end))
            }
            _ => Err(self.bad(format!("tensor {name} is larger than any memory"))),
        }
    }
}

fn signed(value: i64) -> Value {
    u64::try_from(value).map_or(Value::Negative, Value::Number)
}
