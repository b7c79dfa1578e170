//! Small repositories of weights: whole files, whose tensors hold zeros. Shapes and types are all that is read of them.

use serde_json::{Value, json};

/// A dense network of two layers; each part of a test changes what it is about.
#[derive(Debug, Clone)]
pub struct Network {
    /// Repeating layers.
    pub layers: u64,
    /// Width.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Vocabulary.
    pub vocab: u64,
}

impl Default for Network {
    fn default() -> Self {
        Self { layers: 2, hidden: 256, heads: 4, kv_heads: 2, vocab: 512 }
    }
}

impl Network {
    /// Its `config.json`; with a quantisation, that.
    pub fn config(&self, quantisation: Option<Value>) -> Vec<u8> {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "vocab_size": self.vocab,
            "max_position_embeddings": 8192, "tie_word_embeddings": false,
        });
        if let Some(quantisation) = quantisation {
            config["quantization_config"] = quantisation;
        }
        config.to_string().into_bytes()
    }

    /// The tensors of some layers, in the safetensors format; those outside the layers are with layer 0.
    pub fn safetensors(&self, layers: std::ops::Range<u64>, dtype: &str) -> Vec<u8> {
        let mut tensors = Vec::new();
        if layers.start == 0 {
            for name in ["model.embed_tokens.weight", "lm_head.weight"] {
                tensors.push((name.to_owned(), vec![self.vocab, self.hidden]));
            }
        }
        for layer in layers {
            tensors.push((format!("model.layers.{layer}.mlp.up_proj.weight"), vec![2 * self.hidden, self.hidden]));
            tensors.push((format!("model.layers.{layer}.input_layernorm.weight"), vec![self.hidden]));
        }
        safetensors(&tensors, dtype)
    }

    /// The same network as one GGUF file with matrices of a type (`general.file_type` and ggml's number).
    pub fn gguf(&self, file_type: u32, kind: u32) -> Vec<u8> {
        let mut gguf = Gguf::default();
        gguf.text("general.architecture", "llama");
        for (key, value) in [
            ("llama.block_count", self.layers),
            ("llama.context_length", 8192),
            ("llama.embedding_length", self.hidden),
            ("llama.feed_forward_length", 2 * self.hidden),
            ("llama.attention.head_count", self.heads),
            ("llama.attention.head_count_kv", self.kv_heads),
            ("general.file_type", u64::from(file_type)),
        ] {
            gguf.number(key, u32::try_from(value).expect("small"));
        }
        gguf.tensor("token_embd.weight", &[self.hidden, self.vocab], kind);
        gguf.tensor("output.weight", &[self.hidden, self.vocab], kind);
        for layer in 0..self.layers {
            gguf.tensor(&format!("blk.{layer}.attn_norm.weight"), &[self.hidden], 0);
            gguf.tensor(&format!("blk.{layer}.ffn_up.weight"), &[self.hidden, 2 * self.hidden], kind);
        }
        gguf.finish()
    }
}

/// ggml's number, `general.file_type` and bytes of 256 elements of the types that tests use.
pub const Q4_K_M: (u32, u32) = (15, 12);
/// 8 bits.
pub const Q8_0: (u32, u32) = (7, 8);

/// A safetensors file of these tensors.
pub fn safetensors(tensors: &[(String, Vec<u64>)], dtype: &str) -> Vec<u8> {
    let width = match dtype {
        "BF16" | "F16" => 2,
        "F8_E4M3" | "I8" => 1,
        "F32" | "I32" => 4,
        other => panic!("no width of {other}"),
    };
    let mut entries = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * width;
        entries.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes] }));
        end += bytes;
    }
    let header = Value::Object(entries).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + usize::try_from(end).expect("small"), 0);
    file
}

/// A GGUF file in the making.
#[derive(Default)]
struct Gguf {
    metadata: Vec<u8>,
    keys: u64,
    tensors: Vec<u8>,
    count: u64,
    data: u64,
}

impl Gguf {
    fn string(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn text(&mut self, key: &str, text: &str) {
        Self::string(&mut self.metadata, key);
        self.metadata.extend(8u32.to_le_bytes());
        Self::string(&mut self.metadata, text);
        self.keys += 1;
    }

    fn number(&mut self, key: &str, value: u32) {
        Self::string(&mut self.metadata, key);
        self.metadata.extend(4u32.to_le_bytes());
        self.metadata.extend(value.to_le_bytes());
        self.keys += 1;
    }

    fn tensor(&mut self, name: &str, dimensions: &[u64], kind: u32) {
        Self::string(&mut self.tensors, name);
        self.tensors.extend((dimensions.len() as u32).to_le_bytes());
        self.tensors.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(self.data.to_le_bytes());
        let elements: u64 = dimensions.iter().product();
        let bytes = match kind {
            0 => elements * 4,
            8 => elements / 32 * 34,
            11 => elements / 256 * 110,
            12 => elements / 256 * 144,
            other => panic!("no width of type {other}"),
        };
        self.data += bytes.next_multiple_of(32);
        self.count += 1;
    }

    fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.count.to_le_bytes());
        file.extend(self.keys.to_le_bytes());
        file.extend(self.metadata);
        file.extend(self.tensors);
        let size = file.len().next_multiple_of(32) + usize::try_from(self.data).expect("small");
        file.resize(size, 0);
        file
    }
}
