//! Whether a serving engine comes on with its work: one whose workers are on other nodes waits for an answer of theirs as
//! long as the kernel lets it, and says that it is healthy meanwhile.

use crate::base::EngineKind;

/// Where an engine's work stood when it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Whether it works on any request.
    pub busy: bool,
    /// Passes through the model so far.
    pub passes: u64,
}

impl Progress {
    /// Whether it was at work at both times and did not come on between them.
    pub fn stands_still_since(&self, earlier: &Self) -> bool {
        self.busy && earlier.busy && self.passes == earlier.passes
    }
}

/// The path of an engine's figures; `None` where it has none that tell of progress.
pub fn progress_path(kind: EngineKind) -> Option<&'static str> {
    match kind {
        EngineKind::LlamaCpp => Some("/metrics"),
        EngineKind::Vllm | EngineKind::Sglang => None,
    }
}

/// Reads the figures of `llama-server`; `None` where they are none.
///
/// Source: `tools/server/server-context.cpp` (`n_decode_total`, `requests_processing`).
pub fn progress_of(metrics: &str) -> Option<Progress> {
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
    };
    let busy = value("llamacpp:requests_processing")? > 0.0;
    Some(Progress { busy, passes: value("llamacpp:n_decode_total")? as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_does_not_come_on_stands_still() {
        let text = |busy: u32, passes: u32| {
            format!(
                "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {passes}\nllamacpp:requests_processing {busy}\n"
            )
        };
        let at = |busy, passes| progress_of(&text(busy, passes)).expect("figures");
        assert_eq!(at(2, 7), Progress { busy: true, passes: 7 });
        assert!(at(1, 7).stands_still_since(&at(1, 7)));
        assert!(!at(1, 8).stands_still_since(&at(1, 7)));
        assert!(!at(0, 7).stands_still_since(&at(1, 7)) && !at(1, 7).stands_still_since(&at(0, 7)));
        for none in ["", "llamacpp:n_decode_total 7", "llamacpp:requests_processing x\nllamacpp:n_decode_total 1"] {
            assert_eq!(progress_of(none), None, "{none}");
        }
    }
}
