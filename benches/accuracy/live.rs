//! A real `llama-server` against the same sizes: its log's buffers for small networks of many kinds.
//!
//! The networks are rows of the table with other dimensions and weights of zeros, which a server maps and never reads
//! before its first request.
#![allow(clippy::disallowed_methods, reason = "it runs the engine and reads what it prints")]
#![allow(dead_code, reason = "the benchmark uses all of it, the test a part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flock::base::{Dtype, EngineKind, MIB};
use flock::engine::{self, Settings};
use flock::sizing::{Demand, LlamaSetup, llama_buffers};
use flock::weights::Variant;

use super::Pair;
use crate::headers;

/// A small network: what it shows, the row it is made of, the file's type, other dimensions.
pub type Network = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const ALL: [(&str, &str); 2] = [("vocab", "512"), ("max_ctx", "65536")];

/// The networks.
pub const NETWORKS: &[Network] = &[
    (
        "GQA",
        "Qwen/Qwen3-8B",
        "F16",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "2"),
            ("head_dim", "64"),
            ("intermediate", "1536"),
        ],
    ),
    (
        "MHA",
        "meta-llama/Llama-2-7b-hf",
        "Q8_0",
        &[
            ("layers", "3"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "8"),
            ("head_dim", "64"),
            ("intermediate", "1408"),
        ],
    ),
    (
        "MLA + MoE",
        "deepseek-ai/DeepSeek-V2-Lite",
        "F16",
        &[
            ("layers", "27"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "8"),
            ("kv_lora_rank", "128"),
            ("qk_rope_head_dim", "32"),
            ("qk_nope_head_dim", "64"),
            ("v_head_dim", "64"),
            ("intermediate", "1536"),
            ("experts", "16"),
            ("experts_per_tok", "4"),
            ("moe_intermediate", "256"),
            ("shared_experts", "1"),
        ],
    ),
    (
        "sliding window",
        "google/gemma-3-4b-it",
        "F16",
        &[
            ("layers", "6"),
            ("hidden", "512"),
            ("heads", "4"),
            ("kv_heads", "2"),
            ("head_dim", "128"),
            ("intermediate", "2048"),
            ("sliding_window", "512"),
        ],
    ),
    (
        "sliding window, every other layer",
        "google/gemma-2-2b-it",
        "F16",
        &[
            ("layers", "6"),
            ("hidden", "512"),
            ("heads", "4"),
            ("kv_heads", "2"),
            ("head_dim", "128"),
            ("intermediate", "2048"),
            ("sliding_window", "512"),
        ],
    ),
    (
        "MoE",
        "Qwen/Qwen3-30B-A3B",
        "F16",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "2"),
            ("head_dim", "64"),
            ("experts", "32"),
            ("experts_per_tok", "8"),
            ("moe_intermediate", "192"),
        ],
    ),
    (
        "MoE of 8",
        "mistralai/Mixtral-8x7B-v0.1",
        "Q4_0",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "2"),
            ("head_dim", "64"),
            ("intermediate", "1792"),
        ],
    ),
    (
        "sliding window + MoE, MXFP4",
        "openai/gpt-oss-20b",
        "MXFP4",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "2"),
            ("head_dim", "64"),
            ("intermediate", "512"),
            ("experts", "8"),
            ("experts_per_tok", "4"),
        ],
    ),
    (
        "KV heads by layer",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        "F16",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "8"),
            ("kv_heads", "8"),
            ("head_dim", "64"),
            ("intermediate", "1536"),
            ("kv_per_layer", "8 2 4 1"),
        ],
    ),
    (
        "hybrid + MoE",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "F16",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "4"),
            ("kv_heads", "2"),
            ("head_dim", "128"),
            ("moe_intermediate", "128"),
            ("experts", "16"),
            ("experts_per_tok", "4"),
            (
                "linear_attn",
                "linear_num_key_heads=4,linear_num_value_heads=8,linear_key_head_dim=64,linear_value_head_dim=64",
            ),
        ],
    ),
    (
        "hybrid",
        "Qwen/Qwen3.5-27B",
        "F16",
        &[
            ("layers", "4"),
            ("hidden", "512"),
            ("heads", "4"),
            ("kv_heads", "2"),
            ("head_dim", "128"),
            ("intermediate", "1536"),
            (
                "linear_attn",
                "linear_num_key_heads=4,linear_num_value_heads=8,linear_key_head_dim=64,linear_value_head_dim=64",
            ),
        ],
    ),
];

/// How the server is started.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub context: u64,
    pub slots: u32,
    pub kv: Option<Dtype>,
    pub flash: bool,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kv, flash) = (self.kv.map_or("f16", Dtype::word), if self.flash { "on" } else { "off" });
        write!(f, "{} x {}, {kv}, flash attention {flash}", self.slots, self.context)
    }
}

/// The log rounds every buffer to hundredths of a MiB.
const ROUNDING: u64 = MIB / 200 + 1;

/// A pair whose difference is no more than the rounding of so many lines counts as equal.
fn rounded(predicted: u64, measured: u64, lines: usize) -> Pair {
    let within = predicted.abs_diff(measured) <= ROUNDING * lines.max(1) as u64;
    Pair { predicted, measured: if within { predicted } else { measured } }
}

/// Figures of one start.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    pub model: Pair,
    /// Caches and states.
    pub kv: Pair,
    pub compute: Pair,
}

/// Writes a network into a folder.
pub fn write(folder: &Path, network: &Network) -> (PathBuf, Variant) {
    let row = headers::row(network.1).expect("a row of the table");
    let row = ALL.iter().chain(network.3).fold(row, |row, (name, value)| row.with(name, value));
    let stem = network.0.replace([' ', ',', '+'], "-");
    let files = headers::gguf(&row, network.2, &stem, 1).expect("a known class");
    headers::write(folder, &files).expect("a writable folder");
    (folder.join(&files[0].name), super::read(&files))
}

/// The arguments that flock passes, for a server that only reserves its memory.
fn arguments(program: &str, model: &Path, setting: &Setting) -> Vec<String> {
    let settings = Settings {
        context: setting.context,
        concurrency: setting.slots,
        kv_dtype: setting.kv,
        model_path: model.to_string_lossy().into_owned(),
        served_name: "m".to_owned(),
        ..Settings::default()
    };
    let mut arguments = engine::argv(EngineKind::LlamaCpp, program, &settings);
    // Port 0 is any free one.
    arguments.iter_mut().filter(|argument| *argument == "{port}").for_each(|argument| "0".clone_into(argument));
    if !setting.flash
        && let Some(at) = arguments.iter().position(|argument| argument == "-fa")
    {
        "off".clone_into(&mut arguments[at + 1]);
    }
    arguments.extend(["-lv", "4", "--no-warmup"].map(str::to_owned));
    arguments
}

/// Starts the server, reads its buffers and stops it; `None` with the log's end where it lists none.
pub fn run(program: &str, model: &Path, variant: &Variant, setting: &Setting) -> Result<Live, String> {
    let arguments = arguments(program, model, setting);
    let mut child = Command::new(&arguments[0])
        .args(&arguments[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let mut log = Vec::new();
    for line in BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok) {
        let last = line.contains("sched_reserve: graph splits") || line.contains("graph: nodes");
        log.push(line);
        if last {
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let sum = |word: &str| -> f64 {
        log.iter().filter_map(|line| line.split_once(word)?.1.split_whitespace().nth(1)?.parse::<f64>().ok()).sum()
    };
    let bytes = |word: &str| (sum(word) * MIB as f64) as u64;
    let lines = |words: &[&str]| log.iter().filter(|line| words.iter().any(|word| line.contains(word))).count();
    let repacked: f64 = log
        .iter()
        .filter(|line| line.contains("REPACK"))
        .filter_map(|line| line.split_once("model buffer size")?.1.split_whitespace().nth(1)?.parse::<f64>().ok())
        .sum();
    let compute = bytes("compute buffer size");
    if compute == 0 {
        return Err(log.iter().rev().take(6).rev().map(String::as_str).collect::<Vec<_>>().join("\n"));
    }
    let demand = Demand {
        engine: EngineKind::LlamaCpp,
        context: setting.context,
        concurrency: setting.slots,
        kv_dtype: setting.kv,
        cpu: true,
        // A build from a source archive has no number.
        version: Some("11434"),
        ..Demand::default()
    };
    let setup = LlamaSetup { flash_attention: setting.flash, ..LlamaSetup::default() };
    let found = llama_buffers(variant, &demand, &setup).map_err(|error| error.to_string())?;
    Ok(Live {
        // What is repacked is a copy of mapped pages, which the kernel may drop.
        model: rounded(
            variant.tensors.total_bytes,
            bytes("model buffer size") - (repacked * MIB as f64) as u64,
            lines(&["model buffer size"]),
        ),
        kv: rounded(
            found.kv_bytes + found.state_bytes,
            bytes("KV buffer size") + bytes("RS buffer size"),
            lines(&["KV buffer size", "RS buffer size"]),
        ),
        compute: rounded(found.compute_bytes, compute, 1),
    })
}

/// What `llama-fit-params` estimates for the same start: context and compute, whole MiB. It has no flag for one cache
/// for all slots, so only starts with one slot are the same.
pub fn fit_params(program: &str, model: &Path, setting: &Setting) -> Option<(u64, u64)> {
    let total = setting.context * u64::from(setting.slots);
    let flash = if setting.flash { "on" } else { "off" };
    let kv = setting.kv.map_or("f16", Dtype::word);
    let output = Command::new(program)
        .args(["-m", &model.to_string_lossy(), "-c", &total.to_string(), "-np", &setting.slots.to_string()])
        .args(["-ub", "512", "-b", "2048", "-fa", flash, "-ctk", kv, "-ctv", kv, "--device", "none"])
        .args(["-fitp", "on"])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().rev().find(|line| line.starts_with("Host "))?;
    let mut numbers = line.split_whitespace().skip(2).map(|word| word.parse::<u64>().ok());
    Some((numbers.next()?? * MIB, numbers.next()?? * MIB))
}

/// A real file's header.
pub fn real_model(path: &str) -> Variant {
    use std::io::Read;
    let mut head = Vec::new();
    let file = std::fs::File::open(path).expect("the real model is there");
    let size = file.metadata().expect("a file").len();
    file.take(64 << 20).read_to_end(&mut head).expect("readable");
    super::read(&[headers::HeaderFile { name: "m.gguf".to_owned(), head, size }])
}
