//! From what the config names to concrete candidate weights.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::{Diagnostic, Digest};
use crate::config::{Desired, DiagnosticId, Model, Source};
use crate::inventory::{FetchFile, Inventory};
use crate::placement::{Candidate, Candidates, Origin, SourceProblem};
use crate::ports::{LocalWeights, Weights};
use crate::sizing::{SizingError, effective_context};
use crate::weights::Lock;

use super::locked::{Pinned, add_quantised, candidates_of, pinned};

/// Every identifier of this room with a title and an explanation, in order.
pub const SOURCE_DIAGNOSTICS: &[DiagnosticId] = &[
    DiagnosticId {
        id: UNREADABLE,
        title: "weights cannot be read",
        explanation: "The path of a `path:` source is not there, not readable, or holds no weights that flock knows. It is read on the machine that runs flock.",
    },
    DiagnosticId {
        id: UNSUPPORTED,
        title: "a kind of source that is not fetched yet",
        explanation: "`https:` sources are part of the language and checked; this version of flock plans with `hf:`, `path:` and `on-node:` sources.",
    },
    DiagnosticId {
        id: NOT_ON_ANY_NODE,
        title: "weights that no node has",
        explanation: "An `on-node:` path was found on no reachable node, or could not be read there by the user that flock logs in as.",
    },
    DiagnosticId {
        id: CONTEXT_TOO_LONG,
        title: "more context than the model was trained for",
        explanation: "A model answers nonsense beyond the length that it was trained for, and engines refuse to start there. The trained length is in the weights.",
    },
    DiagnosticId {
        id: NOT_LOCKED,
        title: "weights on the hub that are not pinned",
        explanation: "A model names weights on the hub and flock.lock does not have them. Plans are made from the lock, without network: run `flock lock` and commit flock.lock.",
    },
    DiagnosticId {
        id: DISAGREES,
        title: "flock.lock disagrees with the config",
        explanation: "The source, revision, variants or `weights-from` of a model changed since flock.lock was written. `flock lock` resolves what changed and keeps every other pin.",
    },
    DiagnosticId {
        id: MALFORMED,
        title: "flock.lock cannot be read",
        explanation: "The file is not what flock writes: a merge that was not finished, an edit by hand, or a newer version's. Restore it from git, or delete it and run `flock lock`.",
    },
    DiagnosticId {
        id: UNRESOLVED,
        title: "a source that the hub does not give",
        explanation: "`flock lock` could not read what a source names: the repository, revision or file is not there, a token or an accepted licence is missing, the hub is away, or what it holds are no weights that flock knows. What was pinned before stays.",
    },
    DiagnosticId {
        id: LEFT_OUT,
        title: "a quantisation that is left out",
        explanation: "A repository of an owner that `weights-from` trusts is listed as quantised from the model and is not used: it cannot be read, or its network is another one. Or nothing of such an owner is listed at all, as of one that is misspelt.",
    },
    DiagnosticId {
        id: RENAMED,
        title: "a repository that was renamed",
        explanation: "The hub forwards the old name until somebody else takes it. Write the new one. Nobody asked the hub here: `flock lock --update` does, if it is not clear who changed flock.lock.",
    },
    DiagnosticId {
        id: STALE_ENTRY,
        title: "a pin that nothing uses",
        explanation: "flock.lock has a model that the config no longer has, or whose weights are no longer on the hub. `flock lock` removes it.",
    },
    DiagnosticId {
        id: super::what_if::UNKNOWN_LIKE,
        title: "a node that is like an unknown one",
        explanation: "A file for `flock plan --what-if` adds a node that is like one of which nothing is known, because it does not answer or the inventory lacks it. Name one that answers.",
    },
];

/// A model's weights could not be read.
const UNREADABLE: &str = "FLK210";
/// A kind of source that this version does not fetch from.
const UNSUPPORTED: &str = "FLK211";
/// Weights on the hub that the lock lacks.
pub(super) const NOT_LOCKED: &str = "FLK214";
/// A lock that was written for another config.
pub(super) const DISAGREES: &str = "FLK215";
/// A lock that cannot be read.
pub(super) const MALFORMED: &str = "FLK216";
/// A source that could not be resolved.
pub(super) const UNRESOLVED: &str = "FLK217";
/// A quantisation that is not used.
pub(super) const LEFT_OUT: &str = "FLK218";
/// A repository with another name.
pub(super) const RENAMED: &str = "FLK219";
/// A pin of no model.
pub(super) const STALE_ENTRY: &str = "FLK220";
/// More context than any of a model's weights were trained for.
const CONTEXT_TOO_LONG: &str = "FLK213";
/// `on-node:` weights that no node has.
pub(super) const NOT_ON_ANY_NODE: &str = "FLK212";

/// All `on-node:` paths of the config, for the probe.
pub fn on_node_paths(desired: &Desired) -> Vec<String> {
    let paths: BTreeSet<&str> = desired
        .models
        .values()
        .flat_map(sources)
        .filter_map(|(_, source)| match source {
            Source::OnNode(path) => Some(path.as_str()),
            _ => None,
        })
        .collect();
    paths.into_iter().map(str::to_owned).collect()
}

/// Explicit variants in their order, or the model's one source; with the name each gives its variant.
fn sources(model: &Model) -> Vec<(Option<&str>, &Source)> {
    if model.variants.is_empty() {
        model.source.iter().map(|source| (None, &source.value)).collect()
    } else {
        model.variants.iter().map(|choice| (Some(choice.name.value.as_str()), &choice.source.value)).collect()
    }
}

/// Sources that no plan can be made from yet: a warning at each, since the language knows them.
pub fn unfetched(desired: &Desired) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for model in desired.models.values() {
        let explicit = model.variants.iter().map(|choice| &choice.source);
        for source in model.source.iter().filter(|_| model.variants.is_empty()).chain(explicit) {
            if let Some(problem) = unsupported(&source.value) {
                let warning =
                    Diagnostic::warning(problem.id, &source.place, format!("model `{}`: {problem}", model.name.value));
                found.push(warning.hint(problem.hint.unwrap_or_default()));
            }
        }
    }
    found
}

/// Models whose `context` is beyond the trained length of every one of their weights: no plan can be made of them.
pub(super) fn too_long(desired: &Desired, candidates: &Candidates) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (name, model) in &desired.models {
        let (Some(context), Some(Ok(candidates))) = (&model.context, candidates.get(name)) else { continue };
        let most = |candidate: &Candidate| match effective_context(&candidate.variant, Some(context.value)) {
            Err(SizingError::Context { trained, .. }) => Some(trained),
            _ => None,
        };
        // One that is long enough is enough.
        let Some(lengths) = candidates.iter().map(most).collect::<Option<Vec<_>>>() else { continue };
        let Some(longest) = lengths.into_iter().max() else { continue };
        let asked = context.value;
        let text = format!("model `{name}`: a context of {asked} tokens is more than the {longest} it was trained for");
        let hint = format!("write `context {longest}`, or less");
        found.push(Diagnostic::error(CONTEXT_TOO_LONG, &context.place, text).hint(hint));
    }
    found
}

/// The same from what can be read here without any node: the lock, and weights on this machine.
pub async fn contexts_too_long(desired: &Desired, lock: &Lock, weights: &dyn Weights, root: &str) -> Vec<Diagnostic> {
    if desired.models.values().all(|model| model.context.is_none()) {
        return Vec::new();
    }
    let inventory = Inventory::default();
    let places = Places { inventory: &inventory, lock, weights, root, digests: false };
    too_long(desired, &find_candidates(desired, &places).await)
}

fn unsupported(source: &Source) -> Option<SourceProblem> {
    let Source::Url { url, .. } = source else { return None };
    let text = format!("{url}: weights over https are not fetched by this version of flock");
    let hint = "download the files and name them with `path:` (copied to the nodes) or `on-node:` (already there)";
    Some(SourceProblem { id: UNSUPPORTED, text, hint: Some(hint.to_owned()) })
}

/// Where weights are looked for.
pub struct Places<'a> {
    /// What the nodes have.
    pub inventory: &'a Inventory,
    /// What is pinned of the hub. It is not asked.
    pub lock: &'a Lock,
    /// The controller's disk.
    pub weights: &'a dyn Weights,
    /// The config repository, which `path:` sources are relative to.
    pub root: &'a str,
    /// Whether files of the controller are hashed.
    pub digests: bool,
}

/// Reads the weights of every model. A source is read once however many models name it.
pub async fn find_candidates(desired: &Desired, places: &Places<'_>) -> Candidates {
    let mut read: BTreeMap<&Source, Result<Vec<Candidate>, SourceProblem>> = BTreeMap::new();
    let mut candidates = Candidates::new();
    for (name, model) in &desired.models {
        let locked = match pinned(model, places.lock) {
            Pinned::Nothing => None,
            Pinned::Locked(locked) => Some(locked),
            Pinned::Missing(problem) | Pinned::Differs(problem) => {
                candidates.insert(name.clone(), Err(problem));
                continue;
            }
        };
        let mut found = Ok(Vec::new());
        for (label, source) in sources(model) {
            let pin = locked.and_then(|locked| locked.source(&source.to_string()));
            let more = match pin {
                Some(pin) => Ok(candidates_of(pin)),
                None => {
                    if !read.contains_key(source) {
                        read.insert(source, read_source(source, places).await);
                    }
                    read[source].clone()
                }
            };
            match (&mut found, more) {
                (Ok(found), Ok(more)) => {
                    let siblings = more.len();
                    found.extend(more.into_iter().map(|candidate| relabel(candidate, label, siblings)))
                }
                (Ok(_), Err(problem)) => found = Err(problem),
                (Err(_), _) => {}
            }
        }
        if let (Ok(found), Some(locked)) = (&mut found, locked)
            && model.variants.is_empty()
        {
            add_quantised(found, model, locked);
        }
        if let Ok(found) = &mut found
            && model.extras.parts.iter().any(|part| part.value == "vision")
        {
            found.iter_mut().for_each(with_projector);
        }
        candidates.insert(name.clone(), found);
    }
    candidates
}

/// Puts the projector among the files to have, for a model of which vision is wanted.
fn with_projector(candidate: &mut Candidate) {
    let Some(projector) = candidate.projector.clone() else { return };
    candidate.variant.download_bytes = candidate.variant.download_bytes.saturating_add(projector.size_bytes);
    candidate.variant.files.extend(candidate.variant.projector.clone());
    candidate.variant.files.sort_by(|a, b| a.name.cmp(&b.name));
    candidate.files.push(projector);
    candidate.files.sort_by(|a, b| a.name.cmp(&b.name));
    candidate.revision = revision(&candidate.files);
}

/// An explicit variant's name is its label; where one source holds several, the variant's id tells them apart.
fn relabel(mut candidate: Candidate, label: Option<&str>, siblings: usize) -> Candidate {
    if let Some(label) = label {
        candidate.label = if siblings == 1 { label.to_owned() } else { format!("{label}/{}", candidate.variant.id) };
    }
    candidate
}

async fn read_source(source: &Source, places: &Places<'_>) -> Result<Vec<Candidate>, SourceProblem> {
    match source {
        Source::Path(path) => match places.weights.read(&under(places.root, path), places.digests).await {
            Ok(found) => Ok(found.into_iter().map(|found| controller_candidate(path, found)).collect()),
            Err(error) => Err(SourceProblem {
                id: UNREADABLE,
                text: error.to_string(),
                hint: Some("`path:` names a GGUF file, or a folder with config.json and safetensors, on the machine that runs flock".to_owned()),
            }),
        },
        Source::OnNode(path) => on_node_candidates(path, places.inventory),
        Source::Hub { .. } => unreachable!("a model's pins were looked up before"),
        Source::Url { .. } => Err(unsupported(source).expect("https sources are the unsupported ones")),
    }
}

/// `/` and `~` stand for themselves.
fn under(root: &str, path: &str) -> String {
    if path.starts_with('/') || path.starts_with('~') { path.to_owned() } else { format!("{root}/{path}") }
}

fn controller_candidate(path: &str, found: LocalWeights) -> Candidate {
    Candidate {
        label: found.variant.id.clone(),
        source: format!("path:{path}"),
        revision: revision(&found.files),
        variant: found.variant,
        files: found.files,
        projector: found.projector,
        origin: Origin::Controller { folder: found.folder },
        gated: None,
    }
}

pub(super) fn revision(files: &[FetchFile]) -> String {
    Digest::of_json(&files).to_string()
}

fn on_node_candidates(path: &str, inventory: &Inventory) -> Result<Vec<Candidate>, SourceProblem> {
    let source = format!("on-node:{path}");
    let mut by_variant: BTreeMap<(String, String), Candidate> = BTreeMap::new();
    let mut problems = Vec::new();
    for node in &inventory.nodes {
        for found in node.weights.iter().filter(|found| found.source == source) {
            if let Some(problem) = &found.problem {
                problems.push(format!("{}: {problem}", node.name));
            }
            for variant in &found.variants {
                // The same path may hold different files on different nodes: those are different candidates.
                let files: Vec<FetchFile> = variant
                    .files
                    .iter()
                    .map(|file| FetchFile {
                        name: file.name.clone(),
                        size_bytes: file.size_bytes.unwrap_or(0),
                        sha256: None,
                    })
                    .collect();
                let revision = revision(&files);
                let candidate = by_variant.entry((variant.id.clone(), revision.clone())).or_insert_with(|| Candidate {
                    label: variant.id.clone(),
                    source: source.clone(),
                    variant: variant.clone(),
                    revision,
                    files,
                    projector: variant.projector.as_ref().map(|file| FetchFile {
                        name: file.name.clone(),
                        size_bytes: file.size_bytes.unwrap_or(0),
                        sha256: None,
                    }),
                    origin: Origin::OnNode { path: path.to_owned(), nodes: Vec::new() },
                    gated: None,
                });
                if let Origin::OnNode { nodes, .. } = &mut candidate.origin {
                    nodes.push(node.name.clone());
                }
            }
        }
    }
    if by_variant.is_empty() {
        let seen = if problems.is_empty() { "no reachable node has it".to_owned() } else { problems.join("; ") };
        return Err(SourceProblem {
            id: NOT_ON_ANY_NODE,
            text: format!("{source}: {seen}"),
            hint: Some("the path must be absolute and readable by the user flock logs in as".to_owned()),
        });
    }
    Ok(by_variant.into_values().collect())
}
