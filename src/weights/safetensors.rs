//! The safetensors container: header and index.
//!
//! Source: the format section of the safetensors README: an 8-byte little-endian length, a JSON object from
//! tensor name to dtype, shape and byte range, then the data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::WeightsError;
use super::names::check_name;
use super::ranges::{Listing, Ranges, Reader, Stop};

/// The reference implementation's own limit is 100 MB; the largest real headers have about 5 MB.
const MAX_HEADER: u64 = 64 << 20;
/// An index names every tensor once.
const MAX_INDEX: u64 = 64 << 20;
/// First request: the length and most headers in one round trip.
const CHUNK: u64 = 256 << 10;
const MAX_TENSORS: usize = 4 << 20;

/// A tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct TensorEntry {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl TensorEntry {
    /// Bytes in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.data_offsets[1].saturating_sub(self.data_offsets[0])
    }

    /// Elements by shape.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().fold(1u64, |product, size| product.saturating_mul(*size))
    }
}

/// The bytes of one file's header, and how many bytes of data follow.
pub(super) fn header_bytes<'a>(listing: &Listing, ranges: &'a Ranges, file: &'a str) -> Result<(&'a [u8], u64), Stop> {
    let reader = Reader::open(listing, ranges, file)?;
    let length = reader.first(8, CHUNK, "the header's length")?;
    let length = u64::from_le_bytes(length.try_into().unwrap_or_default());
    if !(2..=MAX_HEADER).contains(&length) {
        return Err(WeightsError::malformed(file, format!("a safetensors header of {length} bytes")).into());
    }
    let bytes = reader.first(8 + length, CHUNK, "the header")?;
    Ok((&bytes[8..], reader.size - 8 - length))
}

/// Reads one file's tensors.
pub(super) fn read_header(listing: &Listing, ranges: &Ranges, file: &str) -> Result<Vec<(String, TensorEntry)>, Stop> {
    let (bytes, data) = header_bytes(listing, ranges, file)?;
    let tensors: TensorMap =
        serde_json::from_slice(bytes).map_err(|error| WeightsError::malformed(file, error.to_string()))?;
    for (name, tensor) in &tensors.0 {
        let [start, end] = tensor.data_offsets;
        if start > end {
            return Err(WeightsError::malformed(file, format!("tensor {name:?} ends before it starts")).into());
        }
        if end > data {
            let text = format!("tensor {name:?} ends at byte {end} of {data} bytes of data");
            return Err(WeightsError::Truncated { file: file.to_owned(), text }.into());
        }
        let width = element_bits(&tensor.dtype);
        if width.is_some_and(|bits| tensor.elements().saturating_mul(bits).div_ceil(8) != tensor.bytes()) {
            return Err(WeightsError::malformed(file, format!("tensor {name:?} has not the bytes of its shape")).into());
        }
    }
    Ok(tensors.0)
}

/// Bits per element of the dtypes of the format; `None` for later ones.
pub(super) fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "I8" | "U8" | "BOOL" => 8,
        "F4" => 4,
        _ => return None,
    })
}

/// The header object, read entry by entry so that nothing but the entries is kept.
struct TensorMap(Vec<(String, TensorEntry)>);

impl<'de> Deserialize<'de> for TensorMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = TensorMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorMap, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else if tensors.len() >= MAX_TENSORS {
                        return Err(serde::de::Error::custom("more tensors than any model has"));
                    } else {
                        tensors.push((name, map.next_value::<TensorEntry>()?));
                    }
                }
                Ok(TensorMap(tensors))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// `model.safetensors.index.json`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Index {
    /// `metadata.total_size`, where it is stated.
    pub(super) total_size: Option<u64>,
    /// `metadata.total_parameters`, where it is stated.
    pub(super) total_parameters: Option<u64>,
    /// The files, sorted.
    pub(super) files: BTreeSet<String>,
    /// Whether an output head of its own is among the tensors.
    pub(super) has_output: bool,
    /// Whether a vision tower is among the tensors.
    pub(super) has_vision: bool,
}

#[derive(Deserialize)]
struct RawIndex {
    #[serde(default)]
    metadata: serde_json::Map<String, serde_json::Value>,
    weight_map: BTreeMap<String, String>,
}

/// Reads an index.
pub(super) fn read_index(listing: &Listing, ranges: &Ranges, file: &str) -> Result<Index, Stop> {
    let bytes = Reader::open(listing, ranges, file)?.whole(MAX_INDEX)?;
    let raw: RawIndex =
        serde_json::from_slice(bytes).map_err(|error| WeightsError::malformed(file, error.to_string()))?;
    let mut files = BTreeSet::new();
    for name in raw.weight_map.values() {
        check_name(name)?;
        files.insert(name.clone());
    }
    let number = |key: &str| raw.metadata.get(key).and_then(super::json::as_number);
    Ok(Index {
        total_size: number("total_size").filter(|size| *size > 0),
        total_parameters: number("total_parameters").filter(|count| *count > 0),
        has_output: raw.weight_map.keys().any(|name| super::safetensors_model::is_output(name)),
        has_vision: raw.weight_map.keys().any(|name| super::safetensors_model::is_vision(name)),
        files,
    })
}
