//! When an instance is ready: it answered a real completion.

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::EngineKind;

/// How to tell that an engine serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// A cheap path to poll with GET; 200 means that asking is worthwhile.
    pub health_path: &'static str,
    /// Where to POST the completion.
    pub completion_path: &'static str,
}

/// The paths of an engine.
pub fn readiness(kind: EngineKind) -> Readiness {
    // The same for all three; health may answer before the model does, so it decides nothing alone.
    match kind {
        EngineKind::LlamaCpp | EngineKind::Vllm | EngineKind::Sglang => {
            Readiness { health_path: "/health", completion_path: "/v1/completions" }
        }
    }
}

impl Readiness {
    /// The JSON body of the completion: one short prompt, few tokens, no sampling. Plain completion and not
    /// chat, because a base model has no chat template.
    pub fn body(&self, served_name: &str) -> String {
        json!({
            "model": served_name, "prompt": "1, 2, 3,", "max_tokens": 4, "temperature": 0, "stream": false,
        })
        .to_string()
    }

    /// Whether an answer proves that the model works: status 200 and a choice with a text or a finish reason.
    pub fn accepts(&self, status: u16, body: &str) -> bool {
        if status != 200 {
            return false;
        }
        let Ok(answer) = serde_json::from_slice::<Value>(body.as_bytes()) else { return false };
        let Some(choice) = answer.get("choices").and_then(|choices| choices.get(0)) else { return false };
        let text = choice.get("text").or_else(|| choice.pointer("/message/content")).and_then(Value::as_str);
        text.is_some_and(|text| !text.is_empty()) || choice.get("finish_reason").is_some_and(Value::is_string)
    }
}

/// How long a start may take: a base for the process and its compilation, and the weights at 100 MB/s, a
/// network file system on a bad day.
pub fn ready_timeout(kind: EngineKind, weights_bytes: u64) -> Duration {
    let base = match kind {
        EngineKind::LlamaCpp => 60,
        // Imports, profiling, compilation and graph capture take minutes.
        EngineKind::Vllm | EngineKind::Sglang => 600,
    };
    Duration::from_secs(base + (weights_bytes / 100_000_000).min(7 * 24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_real_answer_counts() {
        let check = readiness(EngineKind::LlamaCpp);
        assert!(check.accepts(200, r#"{"choices":[{"text":" 4","finish_reason":"length"}]}"#));
        assert!(check.accepts(200, r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#));
        assert!(!check.accepts(200, r#"{"choices":[]}"#));
        assert!(!check.accepts(200, "ok"));
        assert!(!check.accepts(503, r#"{"choices":[{"text":" 4"}]}"#));
        assert!(check.body("a\"b").contains(r#""model":"a\"b""#));
    }

    #[test]
    fn larger_weights_get_more_time() {
        let small = ready_timeout(EngineKind::LlamaCpp, 98_362_432);
        let large = ready_timeout(EngineKind::Vllm, 140_000_000_000);
        assert_eq!(small, Duration::from_secs(60));
        assert_eq!(large, Duration::from_secs(2000));
        assert!(ready_timeout(EngineKind::Vllm, u64::MAX) < Duration::from_secs(1_000_000));
    }
}
