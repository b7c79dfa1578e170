//! Writers of small weight files, for tests.

use std::collections::BTreeMap;

use super::{Architecture, Inspect, Listing, PerLayer, Ranges, Variant, WeightsError, inspect};

/// A small dense network.
pub(crate) fn architecture(layers: u32, hidden: u32, heads: u32, kv_heads: u32) -> Architecture {
    Architecture {
        name: "LlamaForCausalLM".to_owned(),
        layers,
        hidden,
        heads: PerLayer::All(heads),
        kv_heads: PerLayer::All(kv_heads),
        head_dim_k: hidden / heads.max(1),
        head_dim_v: hidden / heads.max(1),
        intermediate: Some(2 * hidden),
        moe_intermediate: None,
        experts: None,
        experts_per_token: None,
        vocab: 1000,
        trained_context: Some(8192),
        tied: false,
        sliding: None,
        mla: None,
        constant_state: None,
        vision_heads: None,
        known: true,
    }
}

/// Writes a GGUF file without its data: the listing says how large it would be.
#[derive(Default)]
pub(crate) struct GgufWriter {
    metadata: Vec<u8>,
    metadata_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: u64,
}

impl GgufWriter {
    pub(crate) fn new(architecture: &str) -> Self {
        Self::default().text("general.architecture", architecture)
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.metadata.extend((key.len() as u64).to_le_bytes());
        self.metadata.extend(key.as_bytes());
        self.metadata.extend(kind.to_le_bytes());
        self.metadata_count += 1;
    }

    pub(crate) fn text(mut self, key: &str, text: &str) -> Self {
        self.key(key, 8);
        self.metadata.extend((text.len() as u64).to_le_bytes());
        self.metadata.extend(text.as_bytes());
        self
    }

    pub(crate) fn number(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4);
        self.metadata.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn numbers(mut self, key: &str, values: &[u32]) -> Self {
        self.key(key, 9);
        self.metadata.extend(4u32.to_le_bytes());
        self.metadata.extend((values.len() as u64).to_le_bytes());
        for value in values {
            self.metadata.extend(value.to_le_bytes());
        }
        self
    }

    pub(crate) fn flags(mut self, key: &str, values: &[bool]) -> Self {
        self.key(key, 9);
        self.metadata.extend(7u32.to_le_bytes());
        self.metadata.extend((values.len() as u64).to_le_bytes());
        self.metadata.extend(values.iter().map(|value| u8::from(*value)));
        self
    }

    pub(crate) fn texts(mut self, key: &str, count: usize) -> Self {
        self.key(key, 9);
        self.metadata.extend(8u32.to_le_bytes());
        self.metadata.extend((count as u64).to_le_bytes());
        for _ in 0..count {
            self.metadata.extend(3u64.to_le_bytes());
            self.metadata.extend(b"tok");
        }
        self
    }

    pub(crate) fn tensor(mut self, name: &str, dimensions: &[u64], kind: u32) -> Self {
        self.tensors.extend((name.len() as u64).to_le_bytes());
        self.tensors.extend(name.as_bytes());
        self.tensors.extend((dimensions.len() as u32).to_le_bytes());
        for size in dimensions {
            self.tensors.extend(size.to_le_bytes());
        }
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(self.data.to_le_bytes());
        let bytes = super::ggml::ggml_type(kind).and_then(|kind| kind.tensor_bytes(dimensions)).unwrap_or(0);
        self.data += bytes.next_multiple_of(32);
        self.tensor_count += 1;
        self
    }

    /// The header's bytes and the whole file's size.
    pub(crate) fn finish(self) -> (Vec<u8>, u64) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.metadata_count.to_le_bytes());
        bytes.extend(self.metadata);
        bytes.extend(self.tensors);
        let size = (bytes.len() as u64).next_multiple_of(32) + self.data;
        (bytes, size)
    }
}

/// Writes a safetensors file without its data.
#[derive(Default)]
pub(crate) struct SafetensorsWriter {
    entries: serde_json::Map<String, serde_json::Value>,
    data: u64,
}

impl SafetensorsWriter {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn tensor(mut self, name: &str, shape: &[u64], dtype: &str) -> Self {
        let bits = super::safetensors::element_bits(dtype).unwrap_or(8);
        let bytes = (shape.iter().product::<u64>() * bits).div_ceil(8);
        let entry = serde_json::json!({
            "dtype": dtype, "shape": shape, "data_offsets": [self.data, self.data + bytes],
        });
        self.entries.insert(name.to_owned(), entry);
        self.data += bytes;
        self
    }

    pub(crate) fn finish(self) -> (Vec<u8>, u64) {
        let header = serde_json::to_vec(&self.entries).expect("a map of plain values");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        let size = bytes.len() as u64 + self.data;
        (bytes, size)
    }
}

/// Runs [`inspect`] over files in memory, each the start of a file of the given size.
pub(crate) fn inspect_memory(files: &[(&str, Vec<u8>, u64)]) -> Result<Vec<Variant>, WeightsError> {
    let listing = Listing::new(files.iter().map(|(name, _, size)| (*name, *size)))?;
    let bytes: BTreeMap<&str, &[u8]> = files.iter().map(|(name, bytes, _)| (*name, bytes.as_slice())).collect();
    let mut ranges = Ranges::new();
    for _ in 0..1000 {
        match inspect(&listing, &ranges)? {
            Inspect::Done(variants) => return Ok(variants),
            Inspect::Need { file, offset, length } => {
                assert!(length > 0);
                let all = bytes.get(file.as_str()).copied().unwrap_or_default();
                let start = (offset as usize).min(all.len());
                let end = (offset.saturating_add(length) as usize).min(all.len());
                ranges.insert(&file, offset, &all[start..end]);
            }
        }
    }
    panic!("inspect asks without end");
}

/// The header of a GGUF file of one layer, and the bytes of the whole file.
pub(crate) fn one_layer_gguf() -> (Vec<u8>, u64) {
    GgufWriter::new("llama")
        .number("llama.block_count", 1)
        .number("llama.context_length", 8192)
        .number("llama.embedding_length", 256)
        .number("llama.feed_forward_length", 512)
        .number("llama.attention.head_count", 4)
        .number("llama.attention.head_count_kv", 2)
        .number("general.file_type", 15)
        .tensor("token_embd.weight", &[256, 1000], 14)
        .tensor("output_norm.weight", &[256], 0)
        .tensor("blk.0.attn_q.weight", &[256, 256], 12)
        .finish()
}
