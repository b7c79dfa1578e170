//! `cluster "name" { … }`: what holds for all nodes and models.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::context::{self, Context, PathRule, SecretRef};
use super::schema::{NodeSpec, Type, arg, prop, rest};
use super::syntax::{Entry, Node};
use super::values::{self, RequestRate};
use super::{Cluster, Objective, Reserve, SshSettings, ids, model_words};
use crate::base::{Hop, Spanned};

const SECRET: &[super::schema::Property] =
    &[prop("env", Type::EnvName, "environment variable that holds it"), prop("file", Type::Path, "file that holds it")];

/// SSH settings of the cluster.
pub(super) static SSH: NodeSpec = NodeSpec::new("ssh", "how nodes are reached")
    .props(&[
        prop("user", Type::Text, "login name").default("ssh_config's, or the user who runs flock"),
        prop("identity", Type::Path, "private key file").default("ssh_config's, or the usual files and ssh-agent"),
        prop("known-hosts", Type::Path, "known_hosts file").default("ssh_config's, or ~/.ssh/known_hosts"),
        prop("connect-timeout", Type::Duration, "deadline of connect and authentication").default("5s"),
        prop("port", Type::Whole(1, 65_535), "port").default("ssh_config's, or 22"),
        prop("jump", Type::Text, "hosts to go through, `user@host:port`, several with commas; `none` for none")
            .default("ssh_config's ProxyJump"),
        prop("trust-on-first-use", Type::Bool, "record an unknown host key once; a changed one is refused")
            .default("#false"),
    ])
    .children(&[&IDENTITY]);
/// Further private keys.
pub(super) static IDENTITY: NodeSpec =
    NodeSpec::new("identity", "private key files, tried in order").args(&[rest("path", Type::Path)]);
/// Memory left free.
pub(super) static RESERVE: NodeSpec = NodeSpec::new("reserve", "memory left free").props(&[
    prop("vram", Type::Bytes, "on every accelerator").default("8 % of its memory"),
    prop("ram", Type::Bytes, "on every node").default("2GiB"),
]);

static GATEWAY: NodeSpec = NodeSpec::new("gateway", "the HTTP front door")
    .props(&[prop("listen", Type::Listen, "address and port")])
    .children(&[&GATEWAY_TOKEN, &TLS])
    .later();
const GATEWAY_TOKEN_PROPERTIES: &[super::schema::Property] = &[
    SECRET[0],
    SECRET[1],
    prop("name", Type::Name, "name of the holder"),
    prop("models", Type::List, "models it may use, `*` for all").default("*"),
    prop("priority", Type::Name, "priority of its requests"),
    prop("rate", Type::RequestRate, "requests per time"),
];
static GATEWAY_TOKEN: NodeSpec =
    NodeSpec::new("token", "who may use the gateway").props(GATEWAY_TOKEN_PROPERTIES).many();
static TLS: NodeSpec = NodeSpec::new("tls", "certificate and key").props(&[
    prop("cert", Type::Path, "certificate chain").required(),
    prop("key", Type::Path, "private key file").required(),
]);
static OBJECTIVE: NodeSpec = NodeSpec::new("objective", "weights of the last placement tier")
    .children(&[&QUALITY, &LATENCY, &LOCALITY, &COST, &STABILITY, &BALANCE]);
const WEIGHT: &[super::schema::Argument] = &[arg("weight", Type::Whole(0, 1_000_000))];
static QUALITY: NodeSpec = NodeSpec::new("quality", "quality of the chosen variants").args(WEIGHT).default("100");
static LATENCY: NodeSpec =
    NodeSpec::new("latency", "predicted speed, and traffic over measured ways").args(WEIGHT).default("40");
static LOCALITY: NodeSpec = NodeSpec::new("locality", "bytes to fetch").args(WEIGHT).default("20");
static COST: NodeSpec = NodeSpec::new("cost", "money").args(WEIGHT).default("10");
static STABILITY: NodeSpec = NodeSpec::new("stability", "restarts and moves").args(WEIGHT).default("60");
static BALANCE: NodeSpec = NodeSpec::new("balance", "even use").args(WEIGHT).default("5");
static HTTP: NodeSpec = NodeSpec::new("http", "the controller's own interface")
    .props(&[prop("listen", Type::Listen, "address and port")])
    .children(&[&HTTP_TOKEN, &WEBHOOK])
    .later();
static HTTP_TOKEN: NodeSpec = NodeSpec::new("token", "who may use the interface").props(SECRET);
static WEBHOOK: NodeSpec = NodeSpec::new("webhook", "calls that trigger a tick")
    .args(&[arg("name", Type::Name)])
    .children(&[&WEBHOOK_SECRET])
    .many();
static WEBHOOK_SECRET: NodeSpec = NodeSpec::new("secret", "key that signs the calls").props(SECRET).required();
static GROUP: NodeSpec =
    NodeSpec::new("group", "people by name").args(&[arg("name", Type::Name)]).children(&[&MEMBER]).many();
static MEMBER: NodeSpec = NodeSpec::new("member", "one person or several").args(&[rest("person", Type::Text)]).many();
static CURRENCY: NodeSpec = NodeSpec::new("currency", "the currency of all prices").args(&[arg("code", Type::Text)]);
static SOURCE: NodeSpec = NodeSpec::new("source", "the git repository that the controller follows")
    .props(&[
        prop("git", Type::Text, "address of the repository").required(),
        prop("branch", Type::Text, "branch"),
        prop("tag", Type::Text, "tag or pattern of tags"),
        prop("folder", Type::Text, "folder inside the repository"),
        prop("poll", Type::Duration, "how often to look"),
        prop("require-signed", Type::Bool, "only signed commits").default("#false"),
    ])
    .children(&[&SIGNERS])
    .later();
static SIGNERS: NodeSpec = NodeSpec::new("signers", "file of allowed signers").args(&[arg("path", Type::Path)]);
static NOTIFY: NodeSpec = NodeSpec::new("notify", "whom to tell")
    .props(&[
        prop("webhook", Type::Url, "address that is called"),
        prop("command", Type::Text, "program that is run"),
        prop("on", Type::Words(&["hold", "failed", "decay", "infeasible", "applied", "drift"]), "what about")
            .default("everything"),
    ])
    .many()
    .later();
static TELEMETRY: NodeSpec =
    NodeSpec::new("telemetry", "where traces go").props(&[prop("otlp", Type::Url, "OTLP endpoint").required()]).later();
static DEFAULTS: NodeSpec =
    NodeSpec::new("defaults", "what models say unless they say otherwise").children(model_words::MODEL_CHILDREN);

/// `cluster`.
pub(super) static CLUSTER: NodeSpec = NodeSpec::new("cluster", "the cluster: what holds for all nodes and models")
    .args(&[arg("name", Type::Name)])
    .children(&[
        &SSH, &RESERVE, &GATEWAY, &OBJECTIVE, &HTTP, &GROUP, &CURRENCY, &SOURCE, &NOTIFY, &TELEMETRY, &DEFAULTS,
    ])
    .required();

/// Further words of the cluster block. Groups and the currency act; the others do with later versions.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ClusterExtras {
    /// The HTTP front door.
    pub gateway: Option<Gateway>,
    /// The controller's own interface.
    pub http: Option<Http>,
    /// People by group.
    pub groups: BTreeMap<String, Vec<String>>,
    /// The currency of all prices.
    pub currency: Option<Spanned<String>>,
    /// The git repository that the controller follows.
    pub source: Option<GitSource>,
    /// Whom to tell.
    pub notify: Vec<Notify>,
    /// OTLP endpoint.
    pub telemetry: Option<Spanned<String>>,
}

/// The HTTP front door.
#[derive(Debug, Clone, Serialize)]
pub struct Gateway {
    /// Address and port.
    pub listen: Option<Spanned<String>>,
    /// Who may use it.
    pub tokens: Vec<GatewayToken>,
    /// Certificate and key files.
    pub tls: Option<Tls>,
}

/// Who may use the gateway.
#[derive(Debug, Clone, Serialize)]
pub struct GatewayToken {
    /// Where the token is.
    pub secret: Spanned<SecretRef>,
    /// Name of the holder.
    pub name: Option<Spanned<String>>,
    /// Models it may use, globs allowed; empty means all.
    pub models: Vec<String>,
    /// Priority class of its requests.
    pub priority: Option<String>,
    /// Requests per time.
    pub rate: Option<RequestRate>,
}

/// Certificate and key files.
#[derive(Debug, Clone, Serialize)]
pub struct Tls {
    /// Certificate chain.
    pub cert: Spanned<String>,
    /// Private key.
    pub key: Spanned<String>,
}

/// The controller's own interface.
#[derive(Debug, Clone, Serialize)]
pub struct Http {
    /// Address and port.
    pub listen: Option<Spanned<String>>,
    /// Where its token is.
    pub token: Option<Spanned<SecretRef>>,
    /// Signing keys of webhooks by name.
    pub webhooks: BTreeMap<String, Spanned<SecretRef>>,
}

/// The git repository that the controller follows.
#[derive(Debug, Clone, Serialize)]
pub struct GitSource {
    /// Its address.
    pub git: Spanned<String>,
    /// Branch; not together with `tag`.
    pub branch: Option<String>,
    /// Tag.
    pub tag: Option<String>,
    /// Folder inside the repository.
    pub folder: Option<String>,
    /// How often to look.
    pub poll: Option<Duration>,
    /// Only signed commits.
    pub require_signed: bool,
    /// File of allowed signers.
    pub signers: Option<Spanned<String>>,
}

/// Whom to tell about what.
#[derive(Debug, Clone, Serialize)]
pub struct Notify {
    /// Address or program.
    pub target: NotifyTarget,
    /// What about; empty means everything.
    pub on: Vec<String>,
}

/// Address or program that is told.
#[derive(Debug, Clone, Serialize)]
pub enum NotifyTarget {
    /// An address that is called.
    Webhook(Spanned<String>),
    /// A program that is run.
    Command(Spanned<String>),
}

pub(super) fn decode(node: &Node, cx: &mut Context<'_>) -> Option<Cluster> {
    let ssh = node.child("ssh").map(|ssh| settings(ssh, cx)).unwrap_or_default();
    let reserve = node.child("reserve").map(reserve).unwrap_or_default();
    let objective = node.child("objective").map(objective).unwrap_or_default();
    let extras = extras(node, cx);
    Some(Cluster { name: node.arg(0)?.spanned()?, ssh, reserve, objective, extras })
}

/// `ssh` of a cluster or a node.
pub(super) fn settings(node: &Node, cx: &mut Context<'_>) -> SshSettings {
    let mut identity: Vec<_> =
        node.prop("identity").and_then(|entry| cx.path(entry, PathRule::Secret)).into_iter().collect();
    if let Some(more) = node.child("identity") {
        identity.extend(more.args().filter_map(|entry| cx.path(entry, PathRule::Secret)));
    }
    SshSettings {
        user: node.prop("user").and_then(|entry| login(entry, cx)),
        identity,
        known_hosts: node.prop("known-hosts").and_then(|entry| cx.path(entry, PathRule::Anywhere)),
        connect_timeout: node.prop("connect-timeout").and_then(duration),
        port: node.prop("port").and_then(Entry::whole).map(|port| port.value),
        jump: node.prop("jump").and_then(|entry| jump(entry, cx)),
        trust_on_first_use: node
            .prop("trust-on-first-use")
            .and_then(|entry| entry.get(values::boolean))
            .map(|flag| flag.value),
    }
}

fn jump(entry: &Entry, cx: &mut Context<'_>) -> Option<Spanned<String>> {
    let hops = entry.spanned()?;
    if let Err(problem) = Hop::parse_row(&hops.value) {
        let hint = "write `jump=\"login.example.org\"`, or `user@host:port` and commas between several";
        cx.error(ids::BAD_NAME, &hops.place, problem, hint);
        return None;
    }
    Some(hops)
}

fn login(entry: &Entry, cx: &mut Context<'_>) -> Option<String> {
    let user = entry.spanned()?;
    if user.value.starts_with('-') || user.value.chars().any(|c| c.is_whitespace() || c.is_control()) {
        cx.error(
            ids::BAD_NAME,
            &user.place,
            "not a login name",
            "a login name has no blanks and does not begin with `-`",
        );
        return None;
    }
    Some(user.value)
}

fn duration(entry: &Entry) -> Option<Duration> {
    Some(entry.get(values::duration)?.value)
}

pub(super) fn reserve(node: &Node) -> Reserve {
    let bytes = |name| node.prop(name).and_then(|entry| entry.get(values::bytes)).map(|bytes| bytes.value);
    Reserve { vram: bytes("vram"), ram: bytes("ram") }
}

fn objective(node: &Node) -> Objective {
    let default = Objective::default();
    let weight = |name, otherwise| {
        node.child(name).and_then(|child| child.arg(0)).and_then(Entry::whole).map_or(otherwise, |weight| weight.value)
    };
    Objective {
        quality: weight("quality", default.quality),
        latency: weight("latency", default.latency),
        locality: weight("locality", default.locality),
        cost: weight("cost", default.cost),
        stability: weight("stability", default.stability),
        balance: weight("balance", default.balance),
    }
}

fn extras(node: &Node, cx: &mut Context<'_>) -> ClusterExtras {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for group in node.all("group") {
        let Some(name) = group.arg(0).and_then(Entry::spanned) else { continue };
        let members = group.all("member").flat_map(Node::args).filter_map(Entry::text).map(str::to_owned).collect();
        groups.insert(name.value, members);
    }
    ClusterExtras {
        gateway: node.child("gateway").map(|gateway| decode_gateway(gateway, cx)),
        http: node.child("http").map(|http| decode_http(http, cx)),
        groups,
        currency: node.child("currency").and_then(|child| child.arg(0)).and_then(Entry::spanned),
        source: node.child("source").and_then(|source| git_source(source, cx)),
        notify: node.all("notify").filter_map(|child| notify(child, cx)).collect(),
        telemetry: node.child("telemetry").and_then(|child| child.prop("otlp")).and_then(Entry::spanned),
    }
}

fn decode_gateway(node: &Node, cx: &mut Context<'_>) -> Gateway {
    let mut tokens = Vec::new();
    for token in node.all("token") {
        let priority = token.prop("priority").and_then(Entry::spanned);
        let priority = cx.priority(priority).name;
        let models =
            token.prop("models").and_then(|entry| entry.get(values::list)).map(|list| list.value).unwrap_or_default();
        let name = token.prop("name").and_then(Entry::spanned);
        let rate = token.prop("rate").and_then(|entry| entry.get(values::request_rate)).map(|rate| rate.value);
        if let Some(secret) = context::secret(token, cx) {
            tokens.push(GatewayToken { secret, name, models, priority, rate });
        }
    }
    let tls = node.child("tls").and_then(|tls| {
        let cert = cx.path(tls.prop("cert")?, PathRule::Anywhere)?;
        let key = cx.path(tls.prop("key")?, PathRule::Secret)?;
        Some(Tls { cert, key })
    });
    Gateway { listen: node.prop("listen").and_then(Entry::spanned), tokens, tls }
}

fn decode_http(node: &Node, cx: &mut Context<'_>) -> Http {
    let mut webhooks: BTreeMap<String, Spanned<SecretRef>> = BTreeMap::new();
    for webhook in node.all("webhook") {
        let Some(name) = webhook.arg(0).and_then(Entry::spanned) else { continue };
        let Some(secret) = webhook.child("secret") else {
            cx.error(ids::MISSING_PROPERTY, webhook.place(), "a webhook without a secret", "add `secret env=\"NAME\"`");
            continue;
        };
        let Some(secret) = context::secret(secret, cx) else { continue };
        if let Some(first) = webhooks.get(&name.value) {
            let message = format!("the webhook `{}` is declared twice", name.value);
            cx.error_about(ids::DUPLICATE_NAME, &name.place, message, "keep one", (&first.place, "the other one"));
        }
        webhooks.insert(name.value, secret);
    }
    Http {
        listen: node.prop("listen").and_then(Entry::spanned),
        token: node.child("token").and_then(|token| context::secret(token, cx)),
        webhooks,
    }
}

fn git_source(node: &Node, cx: &mut Context<'_>) -> Option<GitSource> {
    let text = |name| node.prop(name).and_then(Entry::text).map(str::to_owned);
    if let (Some(branch), Some(tag)) = (node.prop("branch"), node.prop("tag")) {
        cx.error_about(
            ids::CONTRADICTION,
            &tag.place,
            "both `branch=` and `tag=`",
            "keep one of them",
            (&branch.place, "the other one"),
        );
    }
    Some(GitSource {
        git: node.prop("git")?.spanned()?,
        branch: text("branch"),
        tag: text("tag"),
        folder: text("folder"),
        poll: node.prop("poll").and_then(duration),
        require_signed: node
            .prop("require-signed")
            .and_then(|entry| entry.get(values::boolean))
            .is_some_and(|flag| flag.value),
        signers: node
            .child("signers")
            .and_then(|child| child.arg(0))
            .and_then(|entry| cx.path(entry, PathRule::Anywhere)),
    })
}

fn notify(node: &Node, cx: &mut Context<'_>) -> Option<Notify> {
    let on = node.prop("on").and_then(|entry| entry.get(values::list)).map(|list| list.value).unwrap_or_default();
    let target = match (node.prop("webhook"), node.prop("command")) {
        (Some(webhook), None) => NotifyTarget::Webhook(webhook.spanned()?),
        (None, Some(command)) => NotifyTarget::Command(command.spanned()?),
        (None, None) => {
            cx.error(
                ids::MISSING_PROPERTY,
                node.place(),
                "`notify` without a target",
                "write `webhook=\"https://…\"` or `command=\"…\"`",
            );
            return None;
        }
        (Some(webhook), Some(command)) => {
            cx.error_about(
                ids::CONTRADICTION,
                &command.place,
                "both `webhook=` and `command=`",
                "write two `notify` lines",
                (&webhook.place, "the other one"),
            );
            return None;
        }
    };
    Some(Notify { target, on })
}
