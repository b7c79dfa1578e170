//! A model that a real llama-server loads in a moment: two layers of llama with random weights and a tokenizer of bytes.
//! It answers nonsense, which is enough where only the answer matters.

use std::path::Path;

const LAYERS: u32 = 2;
const WIDTH: u64 = 64;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const FEED: u64 = 128;
const ALIGNMENT: usize = 32;

/// Writes one; `seed` makes it another model.
pub fn write(path: &Path, seed: u64) {
    std::fs::write(path, gguf(seed)).expect("the folder can be written");
}

struct Writer(Vec<u8>);

impl Writer {
    fn raw_text(&mut self, text: &str) {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.raw_text(key);
        self.0.extend(kind.to_le_bytes());
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.0.extend(value.to_le_bytes());
    }

    fn real(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        self.raw_text(value);
    }

    fn list(&mut self, key: &str, kind: u32, count: usize) {
        self.key(key, 9);
        self.0.extend(kind.to_le_bytes());
        self.0.extend((count as u64).to_le_bytes());
    }
}

fn tokens() -> Vec<(String, u32)> {
    let mut tokens = vec![("<unk>".to_owned(), 2), ("<s>".to_owned(), 3), ("</s>".to_owned(), 3)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6)));
    tokens.push(("\u{2581}".to_owned(), 1));
    tokens.extend(('a'..='z').map(|letter| (letter.to_string(), 1)));
    tokens
}

fn tensors(vocabulary: u64) -> Vec<(String, Vec<u64>)> {
    let kv = WIDTH / u64::from(HEADS) * u64::from(KV_HEADS);
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![WIDTH, vocabulary]),
        ("output_norm.weight".to_owned(), vec![WIDTH]),
        ("output.weight".to_owned(), vec![WIDTH, vocabulary]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("attn_norm", vec![WIDTH]),
            ("ffn_norm", vec![WIDTH]),
            ("attn_q", vec![WIDTH, WIDTH]),
            ("attn_k", vec![WIDTH, kv]),
            ("attn_v", vec![WIDTH, kv]),
            ("attn_output", vec![WIDTH, WIDTH]),
            ("ffn_gate", vec![WIDTH, FEED]),
            ("ffn_up", vec![WIDTH, FEED]),
            ("ffn_down", vec![FEED, WIDTH]),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), shape));
        }
    }
    tensors
}

fn gguf(seed: u64) -> Vec<u8> {
    let tokens = tokens();
    let tensors = tensors(tokens.len() as u64);
    let mut out = Writer(b"GGUF".to_vec());
    out.0.extend(3u32.to_le_bytes());
    out.0.extend((tensors.len() as u64).to_le_bytes());
    out.0.extend(20u64.to_le_bytes());
    out.text("general.architecture", "llama");
    out.text("general.name", &format!("tiny-{seed}"));
    out.number("general.file_type", 0);
    out.number("llama.context_length", 512);
    out.number("llama.embedding_length", WIDTH as u32);
    out.number("llama.block_count", LAYERS);
    out.number("llama.feed_forward_length", FEED as u32);
    out.number("llama.attention.head_count", HEADS);
    out.number("llama.attention.head_count_kv", KV_HEADS);
    out.real("llama.attention.layer_norm_rms_epsilon", 1e-5);
    out.number("llama.rope.dimension_count", WIDTH as u32 / HEADS);
    out.number("llama.vocab_size", tokens.len() as u32);
    out.text("tokenizer.ggml.model", "llama");
    out.list("tokenizer.ggml.tokens", 8, tokens.len());
    for (text, _) in &tokens {
        out.raw_text(text);
    }
    out.list("tokenizer.ggml.scores", 6, tokens.len());
    out.0.extend(std::iter::repeat_n(0.0f32.to_le_bytes(), tokens.len()).flatten());
    out.list("tokenizer.ggml.token_type", 5, tokens.len());
    for (_, kind) in &tokens {
        out.0.extend(kind.to_le_bytes());
    }
    out.number("tokenizer.ggml.bos_token_id", 1);
    out.number("tokenizer.ggml.eos_token_id", 2);
    out.number("tokenizer.ggml.unknown_token_id", 0);
    out.number("general.quantization_version", 2);

    let mut offset = 0u64;
    for (name, shape) in &tensors {
        out.raw_text(name);
        out.0.extend((shape.len() as u32).to_le_bytes());
        for size in shape {
            out.0.extend(size.to_le_bytes());
        }
        out.0.extend(0u32.to_le_bytes()); // F32
        out.0.extend(offset.to_le_bytes());
        offset += shape.iter().product::<u64>() * 4; // always a multiple of the alignment
    }
    out.0.resize(out.0.len().next_multiple_of(ALIGNMENT), 0);
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (name, shape) in &tensors {
        for _ in 0..shape.iter().product::<u64>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            let value = if name.contains("norm") { 1.0 } else { chance * 0.17 };
            out.0.extend(value.to_le_bytes());
        }
    }
    out.0
}
