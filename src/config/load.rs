//! From the files of a repository to the desired state: reading, includes, names, decoding, digest.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use super::model::Decoded;
use super::parallel::{self, Parsed};
use super::syntax::{self, Entry, Node};
use super::{
    Connection, Desired, Policies, agent, cascade, check, cluster, engine, ids, json_schema, model, node, paths,
    place_labels, policy, program, provider, schema, tool, workflow,
};
use crate::base::{Diagnostic, Digest, Place, Severity, Spanned, Tree, TreeEntry, glob_path, sort_diagnostics};

/// The file that begins every config repository.
pub const CLUSTER_FILE: &str = "cluster.kdl";

/// The most nodes of a cluster.
const MAX_NODES: usize = 10_000;

/// What a config repository says, as far as it makes sense.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The desired state; `None` exactly where there is an error among the findings.
    pub desired: Option<Desired>,
    /// What could be resolved in spite of errors, where the one cluster block could: its name and the nodes are right,
    /// what the errors are about is missing. For looking and stopping, never for planning. `None` without errors.
    pub partial: Option<Desired>,
    /// All findings of all files, sorted by file, line, column and id.
    pub diagnostics: Vec<Diagnostic>,
    /// Digest of the resolved meaning: formatting, comments and order do not change it. `None` with errors.
    pub config_digest: Option<Digest>,
    /// The files that were read, includes among them, in order: what a watcher watches.
    pub files: Vec<String>,
}

/// Whether a file is read without being included: `cluster.kdl`, `workflows/**/*.kdl`, `policies/**/*.kdl`.
pub fn is_config_file(path: &str) -> bool {
    path == CLUSTER_FILE
        || (path.ends_with(".kdl") && (path.starts_with("workflows/") || path.starts_with("policies/")))
}

/// Reads a config repository. The tree holds the text of every `.kdl` file, and of all other files at
/// least that they exist. Pure: nothing is read from anywhere else.
pub fn load(tree: &Tree) -> Loaded {
    load_with(tree, None)
}

/// As [`load`]; `also` is a file of the tree that is read whether or not anything includes it: an editor checks what is
/// about to be included.
pub fn load_with(tree: &Tree, also: Option<&str>) -> Loaded {
    let mut cx = Context::new(tree);
    let files = read(&mut cx, also);
    let desired = if files.is_empty() { no_files(&mut cx) } else { resolve(&files, &mut cx) };
    let mut diagnostics = cx.found;
    cascade::prune(|file| files.get(file).map(Vec::as_slice), &mut diagnostics);
    sort_diagnostics(&mut diagnostics);
    // Defaults are resolved once per model: the same finding at the same place is one finding.
    diagnostics.dedup();
    let has_errors = |found: &[Diagnostic]| found.iter().any(|one| one.severity == Severity::Error);
    if desired.is_none() && !has_errors(&diagnostics) {
        // Every reason is reported where it is found; should one be missed, nothing may pass for valid.
        let message = "the cluster block could not be read";
        diagnostics.push(Diagnostic::general(ids::NO_CLUSTER, Severity::Error, message));
    }
    let one_cluster = all(&files, "cluster").count() == 1;
    let (desired, partial) = match has_errors(&diagnostics) {
        true => (None, desired.filter(|_| one_cluster)),
        false => (desired, None),
    };
    let config_digest = desired.as_ref().map(Digest::of_json);
    Loaded { desired, partial, diagnostics, config_digest, files: files.into_keys().collect() }
}

fn no_files(cx: &mut Context<'_>) -> Option<Desired> {
    let message = format!("there is no {CLUSTER_FILE}");
    let hint = "`flock init` writes a config repository; `-C DIR` names one elsewhere";
    cx.found.push(Diagnostic::general(ids::NO_CLUSTER, Severity::Error, message).hint(hint));
    None
}

/// Parses every config file and what they include, each once.
pub(super) fn read(cx: &mut Context<'_>, also: Option<&str>) -> BTreeMap<String, Vec<Node>> {
    let mut files = BTreeMap::new();
    let mut open: Vec<(String, Option<Place>)> = cx
        .tree
        .iter()
        .map(|(path, _)| path)
        .filter(|path| is_config_file(path) || also == Some(path))
        .map(|path| (path.to_owned(), None))
        .collect();
    let mut seen: BTreeSet<String> = open.iter().map(|(path, _)| path.clone()).collect();
    let mut parsed: BTreeMap<String, Parsed> = BTreeMap::new();
    while let Some((path, from)) = open.pop() {
        if !parsed.contains_key(&path) {
            // Whatever else is known by now is read with it.
            let texts = std::iter::once(&path).chain(open.iter().map(|(path, _)| path));
            let texts = texts.filter_map(|path| match cx.tree.get(path) {
                Some(TreeEntry::File(bytes)) if !parsed.contains_key(path) => Some((path.as_str(), bytes.as_slice())),
                _ => None,
            });
            parsed.extend(parallel::parse_all(&texts.collect::<Vec<_>>()));
        }
        let place = from.clone().unwrap_or_else(|| Place::start_of(&path));
        let nodes = match cx.tree.get(&path) {
            Some(TreeEntry::File(_)) => {
                let (nodes, mut found) = parsed.remove(&path).unwrap_or_default();
                cx.found.append(&mut found);
                nodes
            }
            Some(TreeEntry::Present { size }) => {
                let limit = syntax::MAX_FILE_BYTES;
                let (id, message, hint) = if *size > limit {
                    (
                        ids::TOO_LARGE,
                        format!("`{path}` has {size} bytes; at most {limit} are read"),
                        "split it into several files",
                    )
                } else {
                    (ids::UNREADABLE, format!("`{path}` is no config file"), "config files end in .kdl")
                };
                cx.error(id, &place, message, hint);
                Vec::new()
            }
            Some(TreeEntry::Refused(reason)) => {
                let message = format!("`{path}` cannot be read: {reason}");
                cx.error(ids::UNREADABLE, &place, message, "make it a readable file inside the repository");
                Vec::new()
            }
            None => Vec::new(),
        };
        for include in nodes.iter().filter(|node| node.word() == "include") {
            include.read.set(true);
            for entry in include.args() {
                for found in included(entry, cx) {
                    if seen.insert(found.clone()) {
                        open.push((found, Some(entry.at().clone())));
                    }
                }
            }
        }
        files.insert(path, nodes);
    }
    files
}

fn included(entry: &Entry, cx: &mut Context<'_>) -> Vec<String> {
    let Some(written) = entry.text().filter(|text| !text.is_empty()) else { return Vec::new() };
    let place = entry.at();
    if written.starts_with(['/', '~']) {
        cx.error(
            ids::PATH_LEAVES,
            place,
            format!("`{written}` is outside the repository"),
            "includes are relative to the file and stay inside the repository",
        );
        return Vec::new();
    }
    let Some(glob) = paths::relative_to_file(&place.file, written) else {
        cx.error(
            ids::PATH_LEAVES,
            place,
            format!("`{written}` leaves the repository"),
            "includes are relative to the file and stay inside the repository",
        );
        return Vec::new();
    };
    if !paths::is_glob(&glob) {
        if cx.tree.get(&glob).is_some() {
            return vec![glob];
        }
        let hint = match cx.is_there(&glob) {
            true => format!("it is a folder: write `{}/*.kdl`", written.trim_end_matches('/')),
            false => "paths are relative to the file that names them".to_owned(),
        };
        cx.error(ids::NO_MATCH, place, format!("there is no file `{glob}`"), hint);
        return Vec::new();
    }
    let found: Vec<String> = cx
        .tree
        .iter()
        .map(|(path, _)| path)
        .filter(|path| path.ends_with(".kdl") && glob_path(&glob, path))
        .map(str::to_owned)
        .collect();
    if found.is_empty() {
        cx.error(
            ids::NO_MATCH,
            place,
            format!("no .kdl file matches `{glob}`"),
            "`*` stays within a folder, `**` goes through all below it",
        );
    }
    found
}

/// The nodes of one word in all files, in order of file and line.
pub(super) fn all<'n>(files: &'n BTreeMap<String, Vec<Node>>, word: &'static str) -> impl Iterator<Item = &'n Node> {
    files.values().flatten().filter(move |node| node.word() == word).inspect(|node| node.read.set(true))
}

pub(super) fn resolve(files: &BTreeMap<String, Vec<Node>>, cx: &mut Context<'_>) -> Option<Desired> {
    for nodes in files.values() {
        check::siblings(nodes, schema::top_level(), None, &mut cx.found);
    }
    declare(files, cx);
    for node in all(files, "priority") {
        policy::priority(node, cx);
    }
    let block = cluster_block(files, cx);
    let decoded = block.map(|node| cluster::decode(node, cx));
    let cluster = decoded.flatten();
    let defaults = block.and_then(|node| node.child("defaults"));

    let mut nodes = BTreeMap::new();
    for written in all(files, "node") {
        if nodes.len() > MAX_NODES {
            let message = format!("more than {MAX_NODES} nodes");
            cx.error(ids::OUT_OF_RANGE, written.place(), message, "describe several clusters in several repositories");
            break;
        }
        for node in node::decode(written, cluster.as_ref(), cx) {
            nodes.entry(node.name.value.clone()).or_insert(node);
        }
    }
    same_machine(&nodes, cx);
    let mut engines = BTreeMap::new();
    for engine in all(files, "engine").filter_map(|node| engine::decode(node, cx)).collect::<Vec<_>>() {
        engines.entry(engine.kind.value).or_insert(engine);
    }
    let mut providers = BTreeMap::new();
    for provider in all(files, "provider").filter_map(|node| provider::decode(node, cx)).collect::<Vec<_>>() {
        providers.entry(provider.name.value.clone()).or_insert(provider);
    }
    let (mut models, mut provider_models) = (BTreeMap::new(), BTreeMap::new());
    for node in all(files, "model") {
        match model::decode(node, defaults, cx) {
            Some(Decoded::Local(model)) => {
                models.entry(model.name.value.clone()).or_insert(*model);
            }
            Some(Decoded::Provider(model)) => {
                provider_models.entry(model.name.value.clone()).or_insert(*model);
            }
            None => {}
        }
    }
    let mut agents = BTreeMap::new();
    for agent in all(files, "agent").filter_map(|node| agent::decode(node, cx)).collect::<Vec<_>>() {
        agents.entry(agent.name.value.clone()).or_insert(agent);
    }
    let mut tools = BTreeMap::new();
    for tool in all(files, "tool").filter_map(|node| tool::decode(node, cx)).collect::<Vec<_>>() {
        tools.entry(tool.name.value.clone()).or_insert(tool);
    }
    let mut workflows = BTreeMap::new();
    for workflow in all(files, "workflow").filter_map(|node| workflow::decode(node, cx)).collect::<Vec<_>>() {
        workflows.entry(workflow.name.value.clone()).or_insert(workflow);
    }
    for schema in
        workflows.values().flat_map(|workflow| workflow.steps.values()).filter_map(|step| step.output_schema.as_ref())
    {
        if let Some(problem) = json_schema::problem(cx.tree, &schema.value) {
            cx.error(
                ids::BAD_SCHEMA,
                &schema.place,
                format!("`{}` is no schema: {problem}", schema.value),
                "write a JSON schema into it",
            );
        }
    }
    program::check(&workflows, cx);
    let mut policies = Policies::default();
    for spec in schema::top_level().iter().filter(|spec| policy::is_policy(spec.word)) {
        for node in all(files, spec.word) {
            policy::decode(node, &mut policies, cx);
        }
    }
    policy::finish(&mut policies, cx);
    cx.found.extend(place_labels::check(&models, &provider_models, &nodes, &policies));
    Some(Desired {
        cluster: cluster?,
        nodes,
        engines,
        models,
        providers,
        provider_models,
        agents,
        tools,
        workflows,
        policies,
    })
}

/// Two nodes that are one machine would have its memory counted twice.
fn same_machine(nodes: &BTreeMap<String, super::Node>, cx: &mut Context<'_>) {
    let mut seen: BTreeMap<_, &super::Node> = BTreeMap::new();
    for node in nodes.values() {
        let address = match &node.connection {
            Connection::Ssh { address } => {
                Some((&address.value, node.ssh.port, node.ssh.jump.as_ref().map(|jump| &jump.value)))
            }
            Connection::Local => None,
        };
        let Some(first) = seen.get(&address) else {
            seen.insert(address, node);
            continue;
        };
        let message = format!("nodes `{}` and `{}` are the same machine", first.name.value, node.name.value);
        let hint = "its accelerators would be counted twice: keep one of them";
        let found = Diagnostic::warning(ids::SAME_MACHINE, &node.name.place, message).hint(hint);
        cx.found.push(found.related(&first.name.place, "the other one"));
    }
}

/// The one cluster block.
pub(super) fn cluster_block<'n>(files: &'n BTreeMap<String, Vec<Node>>, cx: &mut Context<'_>) -> Option<&'n Node> {
    let mut blocks = all(files, "cluster");
    let Some(first) = blocks.next() else {
        let file = if files.contains_key(CLUSTER_FILE) {
            CLUSTER_FILE
        } else {
            files.keys().next().map_or(CLUSTER_FILE, String::as_str)
        };
        // A file that could not be read says enough.
        if cx.found.iter().any(|found| found.file.as_deref() == Some(CLUSTER_FILE) && found.severity == Severity::Error)
        {
            return None;
        }
        let message = if files.contains_key(CLUSTER_FILE) {
            "no file has a `cluster` block".to_owned()
        } else {
            format!("there is no {CLUSTER_FILE}, and no file has a `cluster` block")
        };
        cx.error(
            ids::NO_CLUSTER,
            &Place::start_of(file),
            message,
            "write `cluster \"lab\" { }` at the top of cluster.kdl",
        );
        return None;
    };
    for other in blocks {
        cx.error_about(
            ids::DUPLICATE_CHILD,
            other.place(),
            "a second `cluster` block",
            "one repository describes one cluster",
            (first.place(), "the first one"),
        );
    }
    Some(first)
}

/// Fills the namespaces: one per kind, over all files.
fn declare(files: &BTreeMap<String, Vec<Node>>, cx: &mut Context<'_>) {
    for kind in [
        "cluster", "node", "engine", "provider", "model", "agent", "tool", "workflow", "priority", "quota", "deny",
        "window",
    ] {
        let mut count = 0;
        for node in all(files, kind) {
            if kind == "node" && count > MAX_NODES {
                // Reported where nodes are decoded.
                break;
            }
            let Some(name) = node.arg(0).and_then(Entry::spanned) else { continue };
            let names = match kind {
                "node" => node::range(&name.value).unwrap_or_default().into_iter().map(|(name, _)| name).collect(),
                _ => vec![name.value],
            };
            for each in names {
                count += 1;
                declare_one(kind, Spanned::new(each, name.place.clone()), cx);
            }
        }
    }
    let groups = all(files, "cluster").flat_map(|cluster| cluster.all("group").collect::<Vec<_>>());
    for group in groups.filter_map(|group| group.arg(0).and_then(Entry::spanned)).collect::<Vec<_>>() {
        declare_one("group", group, cx);
    }
}

fn declare_one(kind: &'static str, name: Spanned<String>, cx: &mut Context<'_>) {
    let Some(first) = cx.names.declare(kind, &name) else { return };
    if kind == "cluster" {
        return;
    }
    let message = format!("the {kind} `{}` is declared twice", name.value);
    cx.error_about(
        ids::DUPLICATE_NAME,
        &name.place,
        message,
        "give it another name, or remove one",
        (&first, "first declared here"),
    );
}
