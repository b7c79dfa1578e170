//! `tool "name" { … }`: what agents may call.

use std::time::Duration;

use serde::Serialize;

use super::context::Context;
use super::ids;
use super::schema::{NodeSpec, Type, arg, prop, rest};
use super::syntax::{Entry, Node};
use super::values;
use crate::base::{Bytes, Spanned};

static MCP: NodeSpec = NodeSpec::new("mcp", "an MCP server that is started as a program")
    .args(&[rest("command", Type::Scalar)])
    .props(&[prop("node", Type::Name, "where it runs; without, with the controller")]);
static HTTP: NodeSpec = NodeSpec::new("http", "an MCP server that is reached over HTTP").args(&[arg("url", Type::Url)]);
static ALLOW: NodeSpec =
    NodeSpec::new("allow", "the only functions that may be called").args(&[rest("function", Type::Text)]);
static TIMEOUT: NodeSpec = NodeSpec::new("timeout", "deadline of one call").args(&[arg("time", Type::Duration)]);
static OUTPUT_LIMIT: NodeSpec = NodeSpec::new("output-limit", "longest answer").args(&[arg("size", Type::SomeBytes)]);
static ONCE: NodeSpec = NodeSpec::new("once", "never repeated after a crash without a human");

/// `tool`.
pub(super) static TOOL: NodeSpec = NodeSpec::new("tool", "something that agents may call")
    .args(&[arg("name", Type::Name)])
    .children(&[&MCP, &HTTP, &ALLOW, &TIMEOUT, &OUTPUT_LIMIT, &ONCE])
    .many();

/// Something that agents may call.
#[derive(Debug, Clone, Serialize)]
pub struct Tool {
    /// Its name.
    pub name: Spanned<String>,
    /// How it is reached.
    pub server: ToolServer,
    /// The only functions that may be called; empty means all.
    pub allow: Vec<Spanned<String>>,
    /// Deadline of one call.
    pub timeout: Option<Spanned<Duration>>,
    /// Longest answer.
    pub output_limit: Option<Spanned<Bytes>>,
    /// Never repeated after a crash without a human.
    pub once: bool,
}

/// How a tool's MCP server is reached.
#[derive(Debug, Clone, Serialize)]
pub enum ToolServer {
    /// A program with its arguments, speaking MCP over its standard input and output.
    Program {
        /// Program and arguments.
        command: Vec<String>,
        /// Where it runs; `None` is with the controller.
        node: Option<Spanned<String>>,
    },
    /// MCP over HTTP.
    Http {
        /// Its address.
        url: Spanned<String>,
    },
}

pub(super) fn decode(node: &Node, cx: &mut Context<'_>) -> Option<Tool> {
    let name = node.arg(0)?.spanned()?;
    let first = |word: &str| node.child(word).and_then(|child| child.arg(0));
    let allow = node.child("allow").into_iter().flat_map(Node::args).filter_map(Entry::spanned).collect();
    let timeout = first("timeout").and_then(|entry| entry.get(values::duration));
    let output_limit = first("output-limit").and_then(|entry| entry.get(values::bytes));
    let once = node.child("once").is_some();
    let server = match (node.child("mcp"), node.child("http")) {
        (Some(mcp), None) => {
            let on = mcp.prop("node").and_then(Entry::spanned);
            if let Some(on) = &on {
                cx.refer("node", on);
            }
            let command: Vec<String> =
                mcp.args().filter_map(|entry| entry.get(values::scalar)).map(|word| word.value).collect();
            if command.first().is_none_or(String::is_empty) {
                return None;
            }
            ToolServer::Program { command, node: on }
        }
        (None, Some(http)) => ToolServer::Http { url: http.arg(0)?.spanned()? },
        (None, None) => {
            let message = format!("tool `{}` says not how it is reached", name.value);
            cx.error(ids::MISSING_PROPERTY, &name.place, message, "add `mcp \"program\"` or `http \"https://…/mcp\"`");
            return None;
        }
        (Some(mcp), Some(http)) => {
            cx.error_about(
                ids::CONTRADICTION,
                http.place(),
                "both `mcp` and `http`",
                "keep one of them",
                (mcp.place(), "the other one"),
            );
            return None;
        }
    };
    Some(Tool { name, server, allow, timeout, output_limit, once })
}
