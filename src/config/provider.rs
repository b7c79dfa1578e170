//! `provider "name" kind="…" base-url="…" { … }`: external APIs.

use serde::Serialize;

use super::context::{self, Context, PathRule, SecretRef};
use super::ids;
use super::schema::{NodeSpec, Type, arg, prop};
use super::syntax::{Entry, Node};
use super::values::{self, Money};
use crate::base::Spanned;

static KEY: NodeSpec = NodeSpec::new("key", "where its key is").props(&[
    prop("env", Type::EnvName, "environment variable that holds it"),
    prop("file", Type::Path, "file that holds it"),
]);
static RETRY: NodeSpec = NodeSpec::new("retry", "how often a failed request is sent again")
    .props(&[prop("attempts", Type::Whole(1, 100), "attempts in all").required()])
    .default("1");
static PRICE: NodeSpec = NodeSpec::new("price", "what tokens cost").props(&[
    prop("input", Type::TokenPrice, "what is sent").required(),
    prop("output", Type::TokenPrice, "what comes back").required(),
]);
static CA: NodeSpec =
    NodeSpec::new("ca", "certificate authority").props(&[prop("file", Type::Path, "certificates in PEM").required()]);
static PROXY: NodeSpec = NodeSpec::new("proxy", "HTTP proxy").props(&[prop(
    "env",
    Type::EnvName,
    "environment variable that holds its address",
)
.required()]);

/// `provider`.
pub(super) static PROVIDER: NodeSpec = NodeSpec::new("provider", "an external API")
    .args(&[arg("name", Type::Name)])
    .props(&[
        prop("kind", Type::Word(&["anthropic", "openai"]), "its protocol").required(),
        prop("base-url", Type::Url, "its address; openai needs one").default("https://api.anthropic.com"),
    ])
    .children(&[&KEY, &RETRY, &PRICE, &CA, &PROXY])
    .many();

/// The protocol that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// Anthropic's messages.
    Anthropic,
    /// OpenAI's chat completions, and whatever is compatible with them.
    Openai,
}

/// An external API.
#[derive(Debug, Clone, Serialize)]
pub struct Provider {
    /// Its name.
    pub name: Spanned<String>,
    /// Its protocol.
    pub kind: ProviderKind,
    /// Its address, without a slash at the end.
    pub base_url: Spanned<String>,
    /// Where its key is.
    pub key: Option<Spanned<SecretRef>>,
    /// Attempts per request in all (1).
    pub attempts: u32,
    /// What tokens cost.
    pub price: Option<TokenPrice>,
    /// Certificate authority in PEM.
    pub ca: Option<Spanned<String>>,
    /// Environment variable that holds a proxy's address.
    pub proxy_env: Option<Spanned<String>>,
}

/// Prices per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenPrice {
    /// What is sent.
    pub input: Money,
    /// What comes back.
    pub output: Money,
}

pub(super) fn decode(node: &Node, cx: &mut Context<'_>) -> Option<Provider> {
    let name = node.arg(0)?.spanned()?;
    let key = node.child("key").and_then(|key| context::secret(key, cx));
    let ca = node.child("ca").and_then(|child| child.prop("file")).and_then(|entry| cx.path(entry, PathRule::Anywhere));
    let proxy_env = node.child("proxy").and_then(|child| child.prop("env")).and_then(Entry::spanned);
    let attempts = node
        .child("retry")
        .and_then(|child| child.prop("attempts"))
        .and_then(Entry::whole)
        .map_or(1, |count| count.value);
    let price = node.child("price").and_then(|child| {
        let input = child.prop("input")?.get(values::token_price)?.value;
        Some(TokenPrice { input, output: child.prop("output")?.get(values::token_price)?.value })
    });
    let kind = match node.prop("kind")?.text()? {
        "anthropic" => ProviderKind::Anthropic,
        "openai" => ProviderKind::Openai,
        _ => return None,
    };
    let base_url = match (node.prop("base-url"), kind) {
        (Some(entry), _) => entry.get(values::url)?.map(|url| url.trim_end_matches('/').to_owned()),
        (None, ProviderKind::Anthropic) => Spanned::new("https://api.anthropic.com".to_owned(), name.place.clone()),
        (None, ProviderKind::Openai) => {
            let message = format!("provider `{}` has no address", name.value);
            cx.error(ids::MISSING_PROPERTY, &name.place, message, "write `base-url=\"https://…\"`");
            return None;
        }
    };
    Some(Provider { name, kind, base_url, key, attempts, price, ca, proxy_env })
}
