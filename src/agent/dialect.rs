//! The agent's side of `engine`: what only the agent knows about how a process ended.

use crate::base::EngineKind;
use crate::engine::{Cause, Ending, classify as classify_ending};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody saw how: it was another keeper's child.
    Unseen,
}

/// Cause and one line for people, from how it ended and its last words.
pub fn classify(kind: EngineKind, ended: Ended, words: &str) -> (Cause, String) {
    match ended {
        Ended::Code(code) => classify_ending(kind, Ending::Exit(code), words),
        Ended::Signal(signal) => classify_ending(kind, Ending::Signal(signal), words),
        Ended::Unseen => {
            // The status that stands for none must not be quoted as one.
            let (cause, text) = classify_ending(kind, Ending::Exit(-1), words);
            (cause, text.replacen("exited with status -1", "ended unseen", 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unseen_end_claims_no_status() {
        let (cause, text) = classify(EngineKind::LlamaCpp, Ended::Unseen, "bye\n");
        assert_eq!((cause, text.as_str()), (Cause::Exit, "llama.cpp ended unseen: bye"));
        let (cause, _) = classify(EngineKind::LlamaCpp, Ended::Unseen, "error: invalid argument: -x\n");
        assert_eq!(cause, Cause::Configuration);
    }
}
