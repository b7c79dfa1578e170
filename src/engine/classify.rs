//! Why an engine died, from how it ended and the end of its log.
//!
//! Phrases: llama.cpp `ggml/src/ggml-cuda`, `ggml/src/ggml-alloc.c`, `src/llama-*.cpp`, `common/arg.cpp`,
//! `tools/server`; vLLM and SGLang: messages of torch, argparse, pydantic and their own checks.

use std::fmt;

use crate::base::{EngineKind, one_line};

/// Why an engine is not serving. The words are those of the inventory's `last_failure.cause`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Device or host memory ran out.
    OutOfMemory,
    /// An argument, a combination of settings, or a missing library: the same start would fail again.
    Configuration,
    /// The port was taken.
    Port,
    /// The weights could not be read.
    Weights,
    /// It ended by itself, for no recognised reason.
    Exit,
    /// A signal ended it.
    Signal,
    /// It lived and did not answer in time.
    NotReady,
    /// It was ready and has left every health request without an answer since.
    NotResponding,
}

impl Cause {
    /// The written word.
    pub fn word(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Configuration => "configuration",
            Self::Port => "port",
            Self::Weights => "weights",
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::NotReady => "not_ready",
            Self::NotResponding => "not_responding",
        }
    }

    /// Whether starting again with the same specification cannot help.
    pub fn is_permanent(self) -> bool {
        matches!(self, Self::Configuration | Self::Weights)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// Not at all; it did not answer in time.
    Unready,
}

/// Phrases by cause, in the order they are tried. A later line of the log is nearer to the death, and a more
/// specific cause wins over the general complaint that follows it.
const PHRASES: &[(Cause, &[&str])] = &[
    (
        Cause::OutOfMemory,
        &[
            "out of memory",
            "outofmemoryerror",
            "cudamalloc failed",
            "failed to allocate buffer for kv cache",
            "failed to allocate compute",
            "unable to allocate",
            "std::bad_alloc",
            "cannot allocate memory",
            "no available memory for the cache blocks",
            "less than desired gpu memory utilization",
            "is larger than the maximum number of tokens that can be stored in kv cache",
            "kv cache is needed, which is larger than the available kv cache memory",
            "not enough memory. please try",
            "failed to allocate cuda",
            "error_out_of_device_memory",
        ],
    ),
    (
        Cause::Port,
        &[
            "couldn't bind http server socket",
            "failed to create server socket",
            "address already in use",
            "failed to bind",
            "errno 98",
            "eaddrinuse",
        ],
    ),
    (
        Cause::Weights,
        &[
            "failed to load model from",
            "invalid magic characters",
            "failed to read magic",
            "model is corrupted",
            "tensor data is not within the file bounds",
            "is not within the file bounds",
            "failed to open gguf file",
            "headertoolarge",
            "metadataincompletebuffer",
            "incompletemetadata",
            "safetensors_rust",
            "missing tensor",
            "unknown model architecture",
            "no such file or directory: '/",
            "cannot find any model weights",
            "error loading model",
        ],
    ),
    (
        Cause::Configuration,
        &[
            "error: invalid argument",
            "error while handling argument",
            "error while handling environment variable",
            "unrecognized arguments",
            "error: argument ",
            "invalid choice",
            "validation error for",
            "validationerror",
            "valueerror:",
            "notimplementederror",
            "modulenotfounderror",
            "importerror",
            "error while loading shared libraries",
            "no cuda gpus are available",
            "cuda driver version is insufficient",
            "no kernel image is available",
            "v cache quantization requires flash_attn",
            "unknown value for --",
            "exec format error",
            "permission denied",
            "flock: environment module",
        ],
    ),
];

/// Longest line that is quoted.
const MAX_QUOTE: usize = 300;

/// The cause, and one line that says why: the status or signal and the log's own words.
pub fn classify(kind: EngineKind, ending: Ending, log_tail: &str) -> (Cause, String) {
    let (default, how) = match ending {
        Ending::Exit(code) => (Cause::Exit, format!("{} exited with status {code}", kind.word())),
        Ending::Signal(signal) => (Cause::Signal, format!("{} was ended by signal {signal}", kind.word())),
        Ending::Unready => (Cause::NotReady, format!("{} did not answer in time", kind.word())),
    };
    let found = PHRASES.iter().find_map(|(cause, phrases)| {
        let line = log_tail.lines().rev().find(|line| {
            let lower = line.to_ascii_lowercase();
            phrases.iter().any(|phrase| lower.contains(phrase))
        })?;
        Some((*cause, line))
    });
    if let Some((cause, line)) = found {
        return (cause, format!("{how}: {}", quote(line)));
    }
    // Who sent it cannot be told from here: a person, or the kernel's memory killer, which leaves no words.
    if ending == Ending::Signal(9) {
        return (default, format!("{how}, sent by somebody or by the kernel when host memory ran out"));
    }
    match log_tail.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => (default, format!("{how}: {}", quote(line))),
        None => (default, how),
    }
}

/// A log line fit for a terminal: no control characters, bounded.
fn quote(line: &str) -> String {
    let clean = one_line(line);
    match clean.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(kind: EngineKind, ending: Ending, log: &str) -> Cause {
        classify(kind, ending, log).0
    }

    #[test]
    fn causes_are_read_from_real_messages() {
        let llama = |log| cause(EngineKind::LlamaCpp, Ending::Exit(1), log);
        assert_eq!(
            llama(
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
            ),
            Cause::OutOfMemory
        );
        assert_eq!(llama("error: invalid argument: --frobnicate\n"), Cause::Configuration);
        assert_eq!(
            llama("srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 20000"),
            Cause::Port
        );
        assert_eq!(llama("gguf_init_from_file_impl: invalid magic characters: 'xxxx'"), Cause::Weights);
        let vllm = |log| cause(EngineKind::Vllm, Ending::Exit(1), log);
        assert_eq!(vllm("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"), Cause::OutOfMemory);
        assert_eq!(
            vllm(
                "ValueError: Free memory on device (21.9/23.99 GiB) on startup is less than desired GPU memory utilization (0.92, 22.07 GiB)."
            ),
            Cause::OutOfMemory
        );
        assert_eq!(vllm("OSError: [Errno 98] Address already in use"), Cause::Port);
        assert_eq!(vllm("vllm serve: error: unrecognized arguments: --x"), Cause::Configuration);
        assert_eq!(cause(EngineKind::Vllm, Ending::Exit(3), "bye"), Cause::Exit);
        assert_eq!(cause(EngineKind::Vllm, Ending::Signal(11), ""), Cause::Signal);
        assert_eq!(cause(EngineKind::Vllm, Ending::Signal(9), ""), Cause::Signal);
        assert_eq!(cause(EngineKind::Vllm, Ending::Unready, ""), Cause::NotReady);
    }

    #[test]
    fn quotes_are_clean_and_short() {
        let (_, text) = classify(EngineKind::Vllm, Ending::Exit(1), &format!("\u{1b}[31m{}\n", "x".repeat(1000)));
        assert!(!text.contains('\u{1b}') && text.chars().count() < 400);
    }
}
