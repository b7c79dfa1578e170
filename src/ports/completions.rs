//! Asking an instance.

use async_trait::async_trait;

use super::{Node, NodeError};
use crate::base::Secret;
use crate::chat::Message;

/// Why an instance gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AskError {
    /// The way to its node failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The engine answered with an error.
    #[error("the engine answered {status}: {message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// In the engine's words.
        message: String,
    },
    /// The engine took too long.
    #[error("{step} took longer than {seconds} s")]
    Deadline {
        /// Which step.
        step: String,
        /// The deadline.
        seconds: u64,
    },
    /// What came is no answer.
    #[error("the engine's answer makes no sense: {reason}")]
    Nonsense {
        /// Why.
        reason: String,
    },
}

/// A question to one instance.
#[derive(Debug, Clone)]
pub struct Question {
    /// The port the engine listens on, on the node's loopback.
    pub port: u16,
    /// The instance's key.
    pub key: Secret<String>,
    /// Name the engine serves the model under.
    pub served_name: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Most tokens to produce; the engine's default where `None`.
    pub max_tokens: Option<u64>,
}

/// What an instance answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// What a reasoning model thought, where the engine keeps it apart.
    pub reasoning: String,
    /// Why it ended: `stop`, `length`, …; `None` where the engine did not say.
    pub finish_reason: Option<String>,
    /// Tokens read; `None` where the engine did not say.
    pub prompt_tokens: Option<u64>,
    /// Tokens produced; `None` where the engine did not say.
    pub completion_tokens: Option<u64>,
    /// From the request to the end of the answer.
    pub elapsed_ms: u64,
}

/// Receives the answer's text as it comes.
pub type OnDelta<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Asks instances.
#[async_trait]
pub trait Completions: Send + Sync {
    /// One completion from an instance on `node`. `on_delta` sees every piece of the text in order; the whole is
    /// in the answer.
    async fn ask(&self, node: &dyn Node, question: &Question, on_delta: OnDelta<'_>) -> Result<Answer, AskError>;
}
