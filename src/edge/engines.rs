//! Asking an instance through its node: a streamed chat completion over a stream to the engine's port.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::http::{Exchange, HttpError, HttpRequest, deadline};
use crate::chat::{ChatRequest, Completion, DONE, EventParser, error_message};
use crate::ports::{Answer, AskError, Completions, Node, OnDelta, Question};

/// Largest body that is not a stream: an error, or a whole answer.
const MAX_BODY: usize = 8 << 20;
/// Most text of one answer.
const MAX_TEXT: usize = 64 << 20;

/// Asks engines that speak the OpenAI format.
#[derive(Debug, Clone, Copy)]
pub struct EngineCompletions {
    /// Deadline of the answer's head: the engine may queue and read a long prompt first.
    pub first: Duration,
    /// Deadline of every further piece.
    pub silence: Duration,
}

impl Default for EngineCompletions {
    fn default() -> Self {
        Self { first: Duration::from_secs(300), silence: Duration::from_secs(120) }
    }
}

#[async_trait]
impl Completions for EngineCompletions {
    async fn ask(&self, node: &dyn Node, question: &Question, on_delta: OnDelta<'_>) -> Result<Answer, AskError> {
        let begun = Instant::now();
        let request =
            ChatRequest::streamed(question.served_name.clone(), question.messages.clone(), question.max_tokens);
        let json = serde_json::to_vec(&request).map_err(|error| nonsense(&error))?;
        let stream = node.open_port(question.port).await?;
        let host = format!("127.0.0.1:{}", question.port);
        let http =
            HttpRequest { host: &host, path: "/v1/chat/completions", key: Some(&question.key), json: Some(json) };
        let mut exchange =
            deadline("waiting for the engine", self.first, Exchange::begin(stream, http)).await.map_err(http_error)?;

        let mut answer = Answer::default();
        if exchange.status() != 200 || !exchange.is_events() {
            let status = exchange.status();
            let body = self.body(&mut exchange).await?;
            if status != 200 {
                return Err(AskError::Status { status, message: error_message(&body) });
            }
            let whole = Completion::parse(&body).map_err(|error| nonsense(&error))?;
            if whole.choices.is_empty() && whole.error.is_none() {
                return Err(nonsense(&"there is no answer in it"));
            }
            take(&mut answer, whole, on_delta)?;
        } else {
            self.events(&mut exchange, &mut answer, on_delta).await?;
        }
        answer.elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(answer)
    }
}

impl EngineCompletions {
    async fn body(&self, exchange: &mut Exchange) -> Result<String, AskError> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece(exchange).await? {
            if body.len() + piece.len() > MAX_BODY {
                return Err(http_error(HttpError::TooLong(MAX_BODY)));
            }
            body.extend_from_slice(&piece);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn events(
        &self,
        exchange: &mut Exchange,
        answer: &mut Answer,
        on_delta: OnDelta<'_>,
    ) -> Result<(), AskError> {
        let mut parser = EventParser::new();
        while let Some(piece) = self.piece(exchange).await? {
            for event in parser.push(&piece).map_err(|error| nonsense(&error))? {
                if event.data == DONE {
                    return Ok(());
                }
                if event.kind == "error" {
                    return Err(AskError::Status { status: 200, message: error_message(&event.data) });
                }
                let chunk = Completion::parse(&event.data).map_err(|error| nonsense(&error))?;
                take(answer, chunk, on_delta)?;
            }
        }
        // An engine that dies ends the stream without its last event.
        if answer.finish_reason.is_none() { Err(nonsense(&"it ended in the middle")) } else { Ok(()) }
    }

    async fn piece(&self, exchange: &mut Exchange) -> Result<Option<hyper::body::Bytes>, AskError> {
        deadline("waiting for more of the answer", self.silence, exchange.next()).await.map_err(http_error)
    }
}

/// Adds what a chunk, or a whole answer, brings.
fn take(answer: &mut Answer, chunk: Completion, on_delta: OnDelta<'_>) -> Result<(), AskError> {
    if let Some(message) = chunk.failure() {
        return Err(AskError::Status { status: 200, message });
    }
    if let Some(usage) = chunk.usage {
        answer.prompt_tokens = usage.prompt_tokens;
        answer.completion_tokens = usage.completion_tokens;
    }
    let Some(choice) = chunk.choices.into_iter().next() else { return Ok(()) };
    if let Some(text) = choice.delta.content.filter(|text| !text.is_empty()) {
        on_delta(&text);
        answer.text.push_str(&text);
    }
    answer.reasoning.push_str(&choice.delta.reasoning_content.unwrap_or_default());
    answer.finish_reason = choice.finish_reason.or(answer.finish_reason.take());
    if answer.text.len() + answer.reasoning.len() > MAX_TEXT {
        return Err(http_error(HttpError::TooLong(MAX_TEXT)));
    }
    Ok(())
}

fn nonsense(error: &dyn std::fmt::Display) -> AskError {
    AskError::Nonsense { reason: error.to_string() }
}

fn http_error(error: HttpError) -> AskError {
    match error {
        HttpError::Deadline { step, seconds } => AskError::Deadline { step: step.to_owned(), seconds },
        other => nonsense(&other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::DuplexStream;

    use super::*;
    use crate::base::Secret;
    use crate::chat::Message;
    use crate::edge::http::tests::serve;
    use crate::inventory::{FetchSpec, Request, Response};
    use crate::ports::{ByteStream, FileSource, NodeError, Progress};

    /// A node with one port.
    struct OnePort(Mutex<Option<DuplexStream>>);

    #[async_trait]
    impl Node for OnePort {
        fn name(&self) -> &str {
            "one"
        }
        async fn call(&self, _request: Request) -> Result<Response, NodeError> {
            Ok(Response::Done)
        }
        async fn follow(&self, request: Request, _: Progress<'_>) -> Result<Response, NodeError> {
            self.call(request).await
        }
        async fn put(
            &self,
            _: FileSource<'_>,
            _: &FetchSpec,
            _: &str,
            _: Option<u64>,
            _: Progress<'_>,
        ) -> Result<(), NodeError> {
            Ok(())
        }
        async fn open_port(&self, _port: u16) -> Result<Box<dyn ByteStream>, NodeError> {
            Ok(Box::new(self.0.lock().expect("free").take().expect("asked once")))
        }
        async fn host_key(&self) -> Option<String> {
            None
        }
        async fn close(&self) {}
    }

    async fn ask(answer: &str) -> (Result<Answer, AskError>, Vec<String>) {
        let (stream, _server) = serve(answer.as_bytes().to_vec(), false);
        let node = OnePort(Mutex::new(Some(stream)));
        let question = Question {
            port: 20000,
            key: Secret::new("k".to_owned()),
            served_name: "coder".to_owned(),
            messages: vec![Message::user("hi")],
            max_tokens: Some(9),
        };
        let deltas = Mutex::new(Vec::new());
        let on_delta = |text: &str| deltas.lock().expect("free").push(text.to_owned());
        let result = EngineCompletions::default().ask(&node, &question, &on_delta).await;
        (result, deltas.into_inner().expect("free"))
    }

    const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n";

    #[tokio::test]
    async fn a_stream_becomes_an_answer() {
        let (answer, deltas) = ask(&format!(
            "{EVENTS}: ping\n\ndata: {{\"choices\":[{{\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}}}]}}\n\n\
             data: {{\"choices\":[{{\"delta\":{{\"content\":\"Hel\"}}}}]}}\n\n\
             data: {{\"choices\":[{{\"delta\":{{\"content\":\"lo\"}},\"finish_reason\":\"stop\"}}]}}\n\n\
             data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":4,\"completion_tokens\":2}}}}\n\ndata: [DONE]\n\n"
        ))
        .await;
        let answer = answer.expect("an answer");
        assert_eq!((answer.text.as_str(), deltas.as_slice()), ("Hello", &["Hel".to_owned(), "lo".to_owned()][..]));
        assert_eq!((answer.prompt_tokens, answer.completion_tokens), (Some(4), Some(2)));
        assert_eq!(answer.finish_reason.as_deref(), Some("stop"));
    }

    #[tokio::test]
    async fn a_whole_answer_is_one_delta() {
        let body = r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#;
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        let (answer, deltas) = ask(&format!("{head}{body}")).await;
        assert_eq!(answer.expect("an answer").completion_tokens, None);
        assert_eq!(deltas, ["Hello"]);
    }

    #[tokio::test]
    async fn failures_keep_the_engines_words() {
        let (answer, _) =
            ask("HTTP/1.1 503 X\r\ncontent-length: 37\r\n\r\n{\"error\":{\"message\":\"Loading model\"}}").await;
        assert_eq!(answer.expect_err("an error").to_string(), "the engine answered 503: Loading model");
        let (answer, _) = ask(&format!("{EVENTS}data: {{\"error\":{{\"message\":\"out of slots\"}}}}\n\n")).await;
        assert!(answer.expect_err("an error").to_string().contains("out of slots"));
        let (answer, deltas) =
            ask(&format!("{EVENTS}data: {{\"choices\":[{{\"delta\":{{\"content\":\"Hel\"}}}}]}}\n\n")).await;
        assert!(answer.expect_err("an error").to_string().contains("ended in the middle"));
        assert_eq!(deltas, ["Hel"]);
    }
}
