//! The small words that config, weights, engines and placement share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A word that is not in its table, with the table's words for the hint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{word}`: it is none of {}", known.join(", "))]
pub struct ParseWordError {
    /// What was expected, such as `quality`.
    pub kind: &'static str,
    /// What was found.
    pub word: String,
    /// The words that are known.
    pub known: Vec<&'static str>,
}

/// Quality names from best to worst; names in one row rank equally. A `*` stands for any suffix.
const QUALITY_ROWS: &[&[&str]] = &[
    &["f32"],
    &["bf16", "f16"],
    &["fp8"],
    &["int8", "Q8_0"],
    &["Q6_K"],
    &["Q5_K_M"],
    &["Q5_K_S", "Q5_1", "Q5_0"],
    &["awq-int4", "gptq-int4", "mxfp4", "nvfp4", "nf4"],
    &["Q4_K_M"],
    &["IQ4_XS", "IQ4_NL"],
    &["Q4_K_S", "Q4_1"],
    &["Q4_0"],
    &["Q3_K_L", "Q3_K_M", "Q3_K_S", "Q3_K_*"],
    &["IQ3_*"],
    &["Q2_K", "Q2_K_*"],
    &["IQ2_*", "TQ2_0"],
    &["IQ1_*", "TQ1_0"],
];

/// How much of the original weights a variant keeps, as a rank: a smaller rank is better.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quality {
    name: String,
    rank: u8,
}

impl Quality {
    /// The rank, 0 for the best.
    pub fn rank(&self) -> u8 {
        self.rank
    }

    /// The written name, such as `bf16` or `Q4_K_M`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is as good as `min` or better; `min` is inclusive.
    pub fn at_least(&self, min: &Quality) -> bool {
        self.rank <= min.rank
    }

    /// The rows of the table, best first, for the schema and the documentation.
    pub fn table() -> &'static [&'static [&'static str]] {
        QUALITY_ROWS
    }
}

impl FromStr for Quality {
    type Err = ParseWordError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        for (rank, row) in QUALITY_ROWS.iter().enumerate() {
            for known in *row {
                let hit = match known.strip_suffix('*') {
                    Some(prefix) => {
                        text.len() >= prefix.len()
                            && text.is_char_boundary(prefix.len())
                            && text[..prefix.len()].eq_ignore_ascii_case(prefix)
                            && text.len() > prefix.len()
                    }
                    None => text.eq_ignore_ascii_case(known),
                };
                if hit {
                    let name = if known.ends_with('*') { text.to_owned() } else { (*known).to_owned() };
                    return Ok(Self { name, rank: rank as u8 });
                }
            }
        }
        Err(ParseWordError {
            kind: "quality",
            word: text.to_owned(),
            known: QUALITY_ROWS.iter().flat_map(|row| row.iter().copied()).collect(),
        })
    }
}

impl TryFrom<String> for Quality {
    type Error = ParseWordError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Quality> for String {
    fn from(quality: Quality) -> Self {
        quality.name
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Declares an enum whose written words live in one table.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident, $kind:literal { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every value, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The written word.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl FromStr for $name {
            type Err = ParseWordError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    other => Err(ParseWordError { kind: $kind, word: other.to_owned(), known: vec![$($word,)+] }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// The serving program.
    EngineKind, "engine" {
        /// llama.cpp's `llama-server`.
        LlamaCpp = "llama.cpp",
        /// vLLM's OpenAI-compatible server.
        Vllm = "vllm",
        /// SGLang's server.
        Sglang = "sglang",
    }
}

words! {
    /// How weights lie on disk.
    WeightFormat, "weight format" {
        /// Hugging Face safetensors, one file or shards with an index.
        Safetensors = "safetensors",
        /// GGUF, one file or numbered shards.
        Gguf = "gguf",
    }
}

words! {
    /// The element type of a KV cache. Sizes per element: see `Dtype::bits_times_32`.
    Dtype, "dtype" {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit float (vLLM `fp8`, e4m3).
        Fp8 = "fp8",
        /// llama.cpp `q8_0`: 34 bytes for 32 elements.
        Q8_0 = "q8_0",
        /// llama.cpp `q5_1`: 24 bytes for 32 elements.
        Q5_1 = "q5_1",
        /// llama.cpp `q5_0`: 22 bytes for 32 elements.
        Q5_0 = "q5_0",
        /// llama.cpp `q4_1`: 20 bytes for 32 elements.
        Q4_1 = "q4_1",
        /// llama.cpp `q4_0`: 18 bytes for 32 elements.
        Q4_0 = "q4_0",
    }
}

impl Dtype {
    /// Bytes that 32 elements take: every supported type is exact at that granularity (ggml's block sizes).
    pub fn bytes_per_32(self) -> u64 {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::Bf16 => 64,
            Self::Fp8 => 32,
            Self::Q8_0 => 34,
            Self::Q5_1 => 24,
            Self::Q5_0 => 22,
            Self::Q4_1 => 20,
            Self::Q4_0 => 18,
        }
    }
}

words! {
    /// What an instance is doing, as its node agent sees it.
    InstanceState, "instance state" {
        /// Started, not yet answering.
        Starting = "starting",
        /// Answered a real completion.
        Ready = "ready",
        /// Not running and not being started again, or between attempts after a failure.
        Failed = "failed",
        /// Being stopped.
        Stopping = "stopping",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_word_is_told_with_the_known_ones() {
        let error = "fp8_ds_mla".parse::<Dtype>().expect_err("no such type").to_string();
        assert!(
            error.starts_with("unknown dtype `fp8_ds_mla`: it is none of f32, ") && error.contains("fp8"),
            "{error}"
        );
    }

    fn rank(text: &str) -> u8 {
        text.parse::<Quality>().expect("a known quality").rank()
    }

    #[test]
    fn equal_rows_rank_equally_and_better_is_smaller() {
        assert_eq!(rank("bf16"), rank("f16"));
        assert_eq!(rank("int8"), rank("Q8_0"));
        assert_eq!(rank("awq-int4"), rank("mxfp4"));
        assert!(rank("bf16") < rank("fp8") && rank("fp8") < rank("Q8_0") && rank("Q4_K_M") < rank("Q4_0"));
        assert!(rank("IQ3_XXS") < rank("IQ2_XS"));
        assert!("int3".parse::<Quality>().is_err());
        assert!("IQ3_".parse::<Quality>().is_err());
    }

    #[test]
    fn case_does_not_matter_and_the_name_is_canonical() {
        assert_eq!("q4_k_m".parse::<Quality>().expect("known").name(), "Q4_K_M");
    }
}
