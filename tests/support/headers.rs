//! Headers of real models without their data: the files that a row of `benches/data/architectures.csv` has on the
//! hub, in a quantisation of choice. Names, shapes and types are those of the published repositories; what follows
//! a header would be zeros.
//!
//! ```ignore
//! let row = headers::row("Qwen/Qwen3-30B-A3B").expect("in the table");
//! for file in headers::safetensors(&row, "gptq-int4", 8).expect("a known class") { /* file.head, file.size */ }
//! for file in headers::gguf(&row, "Q4_K_M", "Qwen3-30B-A3B-Q4_K_M", 1).expect("a known class") { … }
//! ```
#![allow(dead_code, unused_imports, reason = "each program uses its own part")]

use std::collections::BTreeMap;

#[path = "headers/config.rs"]
mod config;
#[path = "headers/gguf.rs"]
mod gguf;
#[path = "headers/network.rs"]
mod network;
#[path = "headers/safetensors.rs"]
mod safetensors;

pub use gguf::{gguf, projector};
pub use network::{Matrix, Role, network};
pub use safetensors::{adapter, safetensors};

const TABLE: &str = include_str!("../../benches/data/architectures.csv");

/// The start of one file, and the size that the whole one has.
#[derive(Debug, Clone)]
pub struct HeaderFile {
    /// Its name in the repository.
    pub name: String,
    /// Its first bytes; the rest is zeros.
    pub head: Vec<u8>,
    /// Its size.
    pub size: u64,
}

impl HeaderFile {
    fn whole(name: &str, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), size: bytes.len() as u64, head: bytes }
    }
}

/// One model of the table.
#[derive(Debug, Clone)]
pub struct Row {
    fields: BTreeMap<String, String>,
}

impl Row {
    /// A field's text, empty where the table has none.
    pub fn text(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    /// A field's number.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.text(field).parse().ok()
    }

    /// `owner/name`.
    pub fn model(&self) -> &str {
        self.text("model")
    }

    /// The class of its config.json.
    pub fn class(&self) -> &str {
        self.text("arch")
    }

    /// The same row with another value.
    pub fn with(mut self, field: &str, value: impl ToString) -> Self {
        self.fields.insert(field.to_owned(), value.to_string());
        self
    }

    /// A value of the `linear_attn` column (`name=number,…`).
    pub fn linear(&self, name: &str) -> Option<u64> {
        self.text("linear_attn").split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    }

    fn n(&self, field: &str) -> u64 {
        self.number(field).unwrap_or(0)
    }

    fn layers(&self) -> u64 {
        self.n("layers")
    }

    fn hidden(&self) -> u64 {
        self.n("hidden")
    }

    fn heads(&self) -> u64 {
        self.n("heads")
    }

    fn kv_heads(&self) -> u64 {
        self.n("kv_heads")
    }

    fn head_dim(&self) -> u64 {
        self.number("head_dim").unwrap_or_else(|| self.hidden() / self.heads().max(1))
    }

    fn tied(&self) -> bool {
        self.text("tie_embeddings") == "True"
    }

    /// KV heads by layer (`kv_per_layer`, with blanks between), for networks that differ.
    fn kv_of_layers(&self) -> Option<Vec<u64>> {
        let each: Vec<u64> = self.text("kv_per_layer").split(' ').filter_map(|heads| heads.parse().ok()).collect();
        (!each.is_empty()).then_some(each)
    }

    fn mla(&self) -> bool {
        self.number("kv_lora_rank").is_some()
    }

    /// Whether a layer's experts are replaced by one MLP.
    fn dense(&self, layer: u64) -> bool {
        self.number("experts").is_none() || layer < self.n("dense_layers")
    }
}

/// Every row.
pub fn rows() -> Vec<Row> {
    table(TABLE).into_iter().map(|fields| Row { fields }).collect()
}

/// The row of a model.
pub fn row(model: &str) -> Option<Row> {
    rows().into_iter().find(|row| row.model() == model)
}

/// The lines of a table with a heading, by column. Fields may be quoted.
pub fn table(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().map(fields);
    let names = lines.next().unwrap_or_default();
    lines.map(|line| names.iter().cloned().zip(line).collect()).collect()
}

fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    all.push(field);
    all
}

/// Writes files into a folder, as long as the whole ones: what follows a header is a hole that reads as zeros.
#[allow(clippy::disallowed_methods, reason = "it writes test data")]
pub fn write(folder: &std::path::Path, files: &[HeaderFile]) -> std::io::Result<()> {
    use std::io::Write;
    for file in files {
        let mut out = std::fs::File::create(folder.join(&file.name))?;
        out.write_all(&file.head)?;
        out.set_len(file.size)?;
    }
    Ok(())
}
