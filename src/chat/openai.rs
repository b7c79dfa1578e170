//! The OpenAI chat completion format, as llama.cpp, vLLM and SGLang speak it.

use serde::{Deserialize, Serialize};

use crate::base::one_line;

/// Data of the event that ends a stream.
pub const DONE: &str = "[DONE]";

/// Who says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What.
    pub content: String,
}

impl Message {
    /// What a person says.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: Role::User, content: content.into() }
    }
}

/// A request for one completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatRequest {
    /// Name the engine serves the model under.
    pub model: String,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Most tokens to produce; the engine's default where `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Whether the answer comes as events.
    pub stream: bool,
    /// What to add to the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
}

/// What to add to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StreamOptions {
    /// Token counts in the last chunk.
    pub include_usage: bool,
}

impl ChatRequest {
    /// A streamed completion that ends with its token counts.
    pub fn streamed(model: impl Into<String>, messages: Vec<Message>, max_tokens: Option<u64>) -> Self {
        let stream_options = Some(StreamOptions { include_usage: true });
        Self { model: model.into(), messages, max_tokens, stream: true, stream_options }
    }
}

/// Token counts as the engine reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Tokens read.
    pub prompt_tokens: Option<u64>,
    /// Tokens produced.
    pub completion_tokens: Option<u64>,
}

/// A whole completion, or one chunk of a streamed one: they differ only in the name of the message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Completion {
    /// The answers; flock asks for one.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// Token counts, in a stream's last chunk.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// An error in the middle of a stream.
    #[serde(default)]
    pub error: Option<serde_json::Value>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Choice {
    /// The text of a whole completion, or what a chunk adds.
    #[serde(default, alias = "message")]
    pub delta: Delta,
    /// `stop`, `length`, …; in the last chunk.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

/// A piece of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Delta {
    /// The text.
    #[serde(default)]
    pub content: Option<String>,
    /// What a reasoning model thinks before its answer, where the engine keeps it apart.
    #[serde(default, alias = "reasoning")]
    pub reasoning_content: Option<String>,
}

impl Completion {
    /// Reads the JSON of a body or of one event.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// The error that came instead of an answer, in its own words.
    pub fn failure(&self) -> Option<String> {
        self.error.as_ref().map(error_text)
    }
}

/// What an error body says: `{"error": {"message": …}}`, `{"message": …}`, `{"detail": …}` or plain text; at most
/// 400 characters without control characters.
pub fn error_message(body: &str) -> String {
    let text = match serde_json::from_str::<serde_json::Value>(body) {
        Ok(value) => error_text(value.get("error").unwrap_or(&value)),
        Err(_) => body.to_owned(),
    };
    one_line(&text).chars().take(400).collect()
}

fn error_text(error: &serde_json::Value) -> String {
    let message = error.get("message").or_else(|| error.get("detail")).unwrap_or(error);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_only_what_was_asked() {
        let request = ChatRequest::streamed("coder", vec![Message::user("hi")], None);
        let json = serde_json::to_string(&request).expect("JSON");
        assert_eq!(
            json,
            r#"{"model":"coder","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#
        );
        let bounded = ChatRequest::streamed("coder", Vec::new(), Some(5));
        assert!(serde_json::to_string(&bounded).expect("JSON").contains(r#""max_tokens":5"#));
    }

    #[test]
    fn chunks_and_whole_answers_read_alike() {
        // A llama.cpp chunk, a vLLM last chunk, a whole answer, a null content.
        let chunk = Completion::parse(
            r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hel"}}],"created":1,"id":"x","model":"m","object":"chat.completion.chunk"}"#,
        );
        assert_eq!(chunk.expect("read").choices[0].delta.content.as_deref(), Some("Hel"));
        let last =
            Completion::parse(r#"{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}"#)
                .expect("read");
        assert_eq!(last.usage, Some(Usage { prompt_tokens: Some(9), completion_tokens: Some(3) }));
        let whole = Completion::parse(
            r#"{"choices":[{"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}]}"#,
        )
        .expect("read");
        assert_eq!(whole.choices[0].delta.content.as_deref(), Some("Hello"));
        assert_eq!(whole.choices[0].finish_reason.as_deref(), Some("stop"));
        let thinking = Completion::parse(
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":"hm"}}]}"#,
        )
        .expect("read");
        assert_eq!(thinking.choices[0].delta.reasoning_content.as_deref(), Some("hm"));
        assert!(Completion::parse("7").is_err());
    }

    #[test]
    fn errors_speak_in_the_engines_words() {
        assert_eq!(error_message(r#"{"error":{"code":401,"message":"Invalid API Key"}}"#), "Invalid API Key");
        assert_eq!(error_message(r#"{"object":"error","message":"too long"}"#), "too long");
        assert_eq!(error_message(r#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(error_message("Bad\u{1b}[31m Gateway\n"), "Bad?[31m Gateway");
        let failed = Completion::parse(r#"{"error":"slot gone"}"#).expect("read");
        assert_eq!(failed.failure().as_deref(), Some("slot gone"));
    }
}
