//! `engine "vllm" version="…" { … }`: where serving programs lie.

use std::collections::BTreeMap;

use serde::Serialize;

use super::context::{self, Context, PathRule};
use super::schema::{NodeSpec, Type, arg, prop};
use super::syntax::{Entry, Node};
use super::values;
use super::{Engine, EnginePath, ids};
use crate::base::{EngineKind, Place, Spanned};

static PATH: NodeSpec = NodeSpec::new("path", "where its program lies")
    .args(&[arg("path", Type::Path)])
    .props(&[prop("node", Type::Name, "on this node only")])
    .many();
static ENV: NodeSpec = NodeSpec::new("env", "environment of its instances")
    .args(&[arg("name", Type::EnvName), arg("value", Type::Scalar)])
    .many();
static ARCHIVE: NodeSpec = NodeSpec::new("archive", "a package that is fetched")
    .props(&[
        prop("url", Type::Url, "its address").required(),
        prop("sha256", Type::Sha256, "its digest").required(),
        prop("binary", Type::Text, "the program inside it").required(),
    ])
    .later();
static CONTAINER: NodeSpec =
    NodeSpec::new("container", "an image that is run").props(&[prop("image", Type::Text, "its name").required()]);
static MODULE: NodeSpec =
    NodeSpec::new("module", "an environment module that is loaded").args(&[arg("name", Type::Text)]).many();

/// `engine`.
pub(super) static ENGINE: NodeSpec = NodeSpec::new("engine", "a serving program")
    .args(&[arg("name", Type::Engine)])
    .props(&[prop("version", Type::Text, "the version it must be")])
    .children(&[&PATH, &ENV, &ARCHIVE, &CONTAINER, &MODULE])
    .many();

/// Where an engine comes from, besides a path; the archive acts with later versions.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EngineExtras {
    /// A package that is fetched.
    pub archive: Option<Archive>,
    /// An image that is run.
    pub container: Option<Spanned<String>>,
    /// Environment modules that are loaded, in order.
    pub modules: Vec<Spanned<String>>,
}

/// A package with an engine in it.
#[derive(Debug, Clone, Serialize)]
pub struct Archive {
    /// Its address.
    pub url: Spanned<String>,
    /// 64 hex digits.
    pub sha256: String,
    /// The program inside it.
    pub binary: Spanned<String>,
}

pub(super) fn decode(node: &Node, cx: &mut Context<'_>) -> Option<Engine> {
    let kind = node.arg(0)?.parsed::<EngineKind>()?;
    let mut paths = Vec::new();
    let mut seen: BTreeMap<Option<String>, Place> = BTreeMap::new();
    for child in node.all("path") {
        let on = child.prop("node").and_then(Entry::spanned);
        if let Some(on) = &on {
            cx.refer("node", on);
        }
        let Some(path) = child.arg(0).and_then(|entry| cx.path(entry, PathRule::OnNode)) else { continue };
        let on = on.map(|on| on.value);
        if let Some(first) = seen.get(&on) {
            cx.error_about(
                ids::DUPLICATE_CHILD,
                child.place(),
                "a second path for the same nodes",
                "keep one, or add `node=\"…\"`",
                (first, "first given here"),
            );
        }
        seen.insert(on.clone(), child.place().clone());
        paths.push(EnginePath { path, node: on });
    }
    paths.sort_by(|a, b| a.node.cmp(&b.node));
    let archive = node.child("archive").and_then(|child| {
        let binary = child.prop("binary")?.spanned()?;
        if super::paths::normal(&binary.value).is_none() || binary.value.starts_with(['/', '~']) {
            cx.error(
                ids::PATH_LEAVES,
                &binary.place,
                "a program outside its archive",
                "write its path inside the archive",
            );
        }
        Some(Archive {
            url: child.prop("url")?.spanned()?,
            sha256: child.prop("sha256")?.get(values::sha256)?.value,
            binary,
        })
    });
    Some(Engine {
        version: node.prop("version").and_then(Entry::spanned),
        paths,
        env: context::env(node.all("env"), cx),
        extras: EngineExtras {
            archive,
            container: node
                .child("container")
                .and_then(|child| child.prop("image"))
                .and_then(Entry::spanned)
                .filter(|image| is_word(image, "an image", "vllm/vllm-openai:v0.11.0", cx)),
            modules: node
                .all("module")
                .filter_map(|child| child.arg(0))
                .filter_map(Entry::spanned)
                .filter(|module| is_word(module, "a module", "cuda/12.4", cx))
                .collect(),
        },
        kind,
    })
}

/// Refuses what a command line would take for an option, or for several words or lines.
fn is_word(written: &Spanned<String>, what: &str, example: &str, cx: &mut Context<'_>) -> bool {
    let text = &written.value;
    let good = !text.is_empty() && !text.starts_with('-') && !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if !good {
        let message = format!("{what} is one word that does not begin with a dash");
        cx.error(ids::BAD_NAME, &written.place, message, format!("write it like \"{example}\""));
    }
    good
}
