//! `node "name" address="…" { … }`, and ranges of nodes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cluster::{self, IDENTITY, RESERVE};
use super::context::{self, Context, PathRule};
use super::schema::{NodeSpec, Property, Type, arg, prop};
use super::syntax::{Entry, Node as KdlNode};
use super::values::{self, Money, Wrong};
use super::{Cluster, Connection, Node, Reserve, SshSettings, ids, names};
use crate::base::Spanned;

/// The most nodes that one range may stand for.
const MAX_RANGE: u64 = 1024;
/// Ports for instances, unless said otherwise.
const PORTS: (u16, u16) = (20_000, 20_999);

const LABEL_ARGS: &[super::schema::Argument] = &[arg("name", Type::Name), arg("value", Type::Scalar)];
pub(super) static LABEL: NodeSpec =
    NodeSpec::new("label", "a fact that `require`, `prefer` and selections name").args(LABEL_ARGS).many();
static ADDRESS: NodeSpec = NodeSpec::new("address", "host name or address").args(&[arg("host", Type::Host)]);
static SSH: NodeSpec = NodeSpec::new("ssh", "how this node is reached").props(SSH_PROPERTIES).children(&[&IDENTITY]);
const SSH_PROPERTIES: &[Property] = &[
    prop("user", Type::Text, "login name").default("the cluster's"),
    prop("identity", Type::Path, "private key file").default("the cluster's"),
    prop("known-hosts", Type::Path, "known_hosts file").default("the cluster's"),
    prop("connect-timeout", Type::Duration, "deadline of connect and authentication").default("the cluster's"),
    prop("port", Type::Whole(1, 65_535), "port").default("the cluster's"),
    prop("jump", Type::Text, "hosts to go through, `user@host:port`, several with commas; `none` for none")
        .default("the cluster's"),
    prop("trust-on-first-use", Type::Bool, "record an unknown host key once; a changed one is refused")
        .default("the cluster's"),
];
pub(super) static PRICE: NodeSpec =
    NodeSpec::new("price", "what an hour costs").args(&[arg("price", Type::HourlyPrice)]);
pub(super) static SPOT: NodeSpec = NodeSpec::new("spot", "may be taken away at any time");
pub(super) static SITE: NodeSpec = NodeSpec::new("site", "where it stands").args(&[arg("name", Type::Name)]);
static WEIGHTS: NodeSpec = NodeSpec::new("weights", "where weights lie")
    .default("~/.local/share/flock/weights")
    .props(&[prop("path", Type::Path, "folder on the node").required()]);
static HOLD: NodeSpec = NodeSpec::new("hold", "out of new placements").args(&[arg("reason", Type::Text)]);
static PORTS_SPEC: NodeSpec =
    NodeSpec::new("ports", "ports for instances").args(&[arg("range", Type::Ports)]).default("20000-20999");
static ENV: NodeSpec = NodeSpec::new("env", "environment of everything that runs there")
    .args(&[arg("name", Type::EnvName), arg("value", Type::Scalar)])
    .many();
static OWNER: NodeSpec = NodeSpec::new("owner", "whose it is").args(&[arg("name", Type::Text)]);

/// `node`.
pub(super) static NODE: NodeSpec = NodeSpec::new("node", "a machine that can host models")
    .args(&[arg("name", Type::NameOrRange)])
    .props(&[
        prop("address", Type::Host, "host name or address"),
        prop("connection", Type::Word(&["ssh", "local"]), "how it is reached").default("ssh"),
    ])
    .children(&[&ADDRESS, &LABEL, &RESERVE, &SSH, &PRICE, &SPOT, &SITE, &WEIGHTS, &HOLD, &PORTS_SPEC, &ENV, &OWNER])
    .many();

/// Further words of a node.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NodeExtras {
    /// What an hour costs.
    pub price_per_hour: Option<Spanned<Money>>,
    /// May be taken away at any time.
    pub spot: bool,
    /// Where it stands.
    pub site: Option<Spanned<String>>,
    /// Whose it is.
    pub owner: Option<Spanned<String>>,
    /// Environment of everything that runs there.
    pub env: BTreeMap<String, String>,
}

/// The names of a node or range, each with the number that replaces `{}` (empty without a range).
pub(super) fn range(text: &str) -> Result<Vec<(String, String)>, Wrong> {
    const HINT: &str = "write a range as `node \"ada-[01-08]\" address=\"ada-{}.example.org\"`";
    let wrong = |message: &str| Err(Wrong::new(ids::BAD_RANGE, message, HINT));
    let Some((before, rest)) = text.split_once('[') else {
        return match names::problem(text) {
            Some(problem) => Err(Wrong::new(ids::BAD_NAME, problem, names::NAME_RULE)),
            None => Ok(vec![(text.to_owned(), String::new())]),
        };
    };
    let Some((inner, after)) = rest.split_once(']') else { return wrong("`[` without `]` in a name") };
    if after.contains('[') {
        return wrong("two ranges in a name");
    }
    let Some((first, last)) = inner.split_once('-') else { return wrong("a range needs its first and last number") };
    let digits = |part: &str| !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return wrong("a range goes from a number to a number");
    }
    let (Ok(from), Ok(to)) = (first.parse::<u64>(), last.parse::<u64>()) else {
        return wrong("a range goes from a number to a number");
    };
    if from > to {
        return wrong("a range goes upwards");
    }
    if to - from >= MAX_RANGE {
        return wrong("a range of more than 1024 nodes");
    }
    if (first.starts_with('0') && first.len() > 1 || last.starts_with('0')) && first.len() != last.len() {
        return wrong("the first and last number of a range with leading zeros have different lengths");
    }
    let width = if first.starts_with('0') { first.len() } else { 1 };
    let mut found = Vec::new();
    for number in from..=to {
        let number = format!("{number:0width$}");
        let name = format!("{before}{number}{after}");
        if let Some(problem) = names::problem(&name) {
            return Err(Wrong::new(ids::BAD_NAME, problem, names::NAME_RULE));
        }
        found.push((name, number));
    }
    Ok(found)
}

/// The nodes that a declaration stands for.
pub(super) fn decode(node: &KdlNode, cluster: Option<&Cluster>, cx: &mut Context<'_>) -> Vec<Node> {
    let Some(written) = node.arg(0).and_then(Entry::spanned) else { return Vec::new() };
    let Ok(members) = range(&written.value) else { return Vec::new() };
    let connection = connection(node, &written, members.len(), cx);
    let ssh = ssh(node, cluster, cx);
    let labels = context::labels(node.all("label"), cx);
    if labels.contains_key("node")
        && let Some(label) = node.all("label").find(|label| label.arg(0).and_then(Entry::text) == Some("node"))
    {
        cx.error(
            ids::CONTRADICTION,
            label.place(),
            "the label `node` is the node's own name",
            "choose another name for the label",
        );
    }
    let own = node.child("reserve").map(cluster::reserve).unwrap_or_default();
    let inherited = cluster.map(|cluster| cluster.reserve).unwrap_or_default();
    let reserve = Reserve { vram: own.vram.or(inherited.vram), ram: own.ram.or(inherited.ram) };
    let weights_path =
        node.child("weights").and_then(|child| child.prop("path")).and_then(|entry| cx.path(entry, PathRule::OnNode));
    let hold = node.child("hold").and_then(|child| child.arg(0)).and_then(Entry::spanned);
    let ports = node.child("ports").and_then(|child| child.arg(0)).and_then(|entry| entry.get(values::ports));
    if let Some(ports) = &ports
        && ports.value.0 < 1024
    {
        cx.error(
            ids::OUT_OF_RANGE,
            &ports.place,
            "ports below 1024",
            "only root may listen there; write a range such as \"20000-20999\"",
        );
    }
    let first = |word: &str| node.child(word).and_then(|child| child.arg(0));
    let extras = NodeExtras {
        price_per_hour: first("price").and_then(|entry| entry.get(values::hourly_price)),
        spot: node.child("spot").is_some(),
        site: first("site").and_then(Entry::spanned),
        owner: first("owner").and_then(Entry::spanned),
        env: context::env(node.all("env"), cx),
    };
    let Some(connection) = connection else { return Vec::new() };
    members
        .into_iter()
        .map(|(name, number)| Node {
            name: Spanned::new(name, written.place.clone()),
            connection: match &connection {
                Connection::Ssh { address } => {
                    Connection::Ssh { address: address.clone().map(|text| text.replace("{}", &number)) }
                }
                Connection::Local => Connection::Local,
            },
            ssh: ssh.clone(),
            labels: labels.clone(),
            reserve,
            weights_path: weights_path.clone(),
            hold: hold.clone(),
            ports: ports.as_ref().map_or(PORTS, |ports| ports.value),
            extras: extras.clone(),
        })
        .collect()
}

fn connection(node: &KdlNode, name: &Spanned<String>, members: usize, cx: &mut Context<'_>) -> Option<Connection> {
    let child = node.child("address").and_then(|child| child.arg(0));
    let property = node.prop("address");
    if let (Some(child), Some(property)) = (child, property) {
        cx.error_about(
            ids::CONTRADICTION,
            child.at(),
            "the address is given twice",
            "keep one",
            (&property.place, "first given here"),
        );
    }
    let local = node.prop("connection").is_some_and(|entry| entry.text() == Some("local"));
    let address = property.or(child);
    let is_range = name.value.contains('[');
    match (address, local) {
        (Some(entry), true) => {
            cx.error(
                ids::CONTRADICTION,
                &entry.place,
                "a local node has no address",
                "remove the address, or write connection=\"ssh\"",
            );
            None
        }
        (None, true) if members > 1 => {
            cx.error(
                ids::CONTRADICTION,
                &name.place,
                "a range of local nodes",
                "this machine is one node; give it one name",
            );
            None
        }
        (None, true) => Some(Connection::Local),
        (None, false) => {
            // An address child that is there and broken has been reported.
            if node.child("address").is_none() {
                let message = format!("node `{}` has no address", name.value);
                cx.error(
                    ids::MISSING_PROPERTY,
                    &name.place,
                    message,
                    "write `address=\"…\"`, or `connection=\"local\"` for this machine",
                );
            }
            None
        }
        (Some(entry), false) => {
            let address = entry.get(values::host)?;
            let holes = address.value.matches("{}").count();
            match (is_range, holes) {
                (true, 1) | (false, 0) => Some(Connection::Ssh { address }),
                (true, 0) if members == 1 => Some(Connection::Ssh { address }),
                (true, 0) => {
                    cx.error(
                        ids::BAD_RANGE,
                        &address.place,
                        "every node of the range has the same address",
                        "write `{}` where the number belongs: \"ada-{}.example.org\"",
                    );
                    None
                }
                (true, _) => {
                    cx.error(ids::BAD_RANGE, &address.place, "`{}` twice in an address", "write it once");
                    None
                }
                (false, _) => {
                    cx.error(
                        ids::BAD_RANGE,
                        &address.place,
                        "`{}` in the address of a single node",
                        "a range has brackets in its name: \"ada-[01-08]\"",
                    );
                    None
                }
            }
        }
    }
}

/// SSH settings, the cluster's where the node has none.
fn ssh(node: &KdlNode, cluster: Option<&Cluster>, cx: &mut Context<'_>) -> SshSettings {
    let inherited = cluster.map(|cluster| cluster.ssh.clone()).unwrap_or_default();
    let Some(child) = node.child("ssh") else { return inherited };
    let own = cluster::settings(child, cx);
    SshSettings {
        user: own.user.or(inherited.user),
        identity: if own.identity.is_empty() { inherited.identity } else { own.identity },
        known_hosts: own.known_hosts.or(inherited.known_hosts),
        connect_timeout: own.connect_timeout.or(inherited.connect_timeout),
        port: own.port.or(inherited.port),
        jump: own.jump.or(inherited.jump),
        trust_on_first_use: own.trust_on_first_use.or(inherited.trust_on_first_use),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_keep_their_zeros() {
        let names: Vec<String> = range("ada-[08-11]").expect("valid").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["ada-08", "ada-09", "ada-10", "ada-11"]);
        assert_eq!(range("n[1-1]x").expect("valid"), [("n1x".to_owned(), "1".to_owned())]);
        for bad in ["a[1-2", "a[2-1]", "a[1]", "a[1-2][1-2]", "a[0-99999]", "a[01-100]", "a[x-y]", "a b[1-2]"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
