//! What every decoder shares: the declared names, the files of the repository, and the findings so far.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::policy::PriorityClass;
use super::syntax::{Entry, Node};
use super::{Priority, ids, names, paths};
use crate::base::{Diagnostic, Place, Spanned, Tree, TreeEntry, is_obeyed};

/// Names by kind, each with its first declaration.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<&'static str, BTreeMap<String, Place>>);

impl Names {
    /// Declares a name; the earlier place if it is taken.
    pub fn declare(&mut self, kind: &'static str, name: &Spanned<String>) -> Option<Place> {
        let of_kind = self.0.entry(kind).or_default();
        if let Some(first) = of_kind.get(&name.value) {
            return Some(first.clone());
        }
        of_kind.insert(name.value.clone(), name.place.clone());
        None
    }

    pub fn place(&self, kind: &'static str, name: &str) -> Option<&Place> {
        self.0.get(kind)?.get(name)
    }

    fn of(&self, kind: &'static str) -> impl Iterator<Item = (&str, &Place)> {
        self.0.get(kind).into_iter().flatten().map(|(name, place)| (name.as_str(), place))
    }
}

/// For this many unknown names of a run the nearest known one is looked for. Looking holds a name against every known
/// one, and whoever has more of them wrong has another list in hand, no slip of the finger.
const MAX_GUESSES: usize = 200;

pub(super) struct Context<'a> {
    pub tree: &'a Tree,
    folders: BTreeSet<&'a str>,
    pub names: Names,
    pub priorities: BTreeMap<String, PriorityClass>,
    pub found: Vec<Diagnostic>,
    /// Whether the files read now count as lying at the root, wherever they lie.
    pub at_root: bool,
    guesses: usize,
}

/// Where a path may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathRule {
    /// Inside the repository, where it must exist.
    Inside,
    /// Inside the repository, where it must exist, or `/…`, `~/…`, which nobody checks here.
    Anywhere,
    /// As `Anywhere`, and it need not exist: secrets lie on one machine only.
    Secret,
    /// `/…` or `~/…` on the nodes.
    OnNode,
}

impl<'a> Context<'a> {
    pub fn new(tree: &'a Tree) -> Self {
        let mut folders = BTreeSet::new();
        for (path, _) in tree.iter() {
            let mut rest = path;
            while let Some((folder, _)) = rest.rsplit_once('/') {
                if !folders.insert(folder) {
                    break;
                }
                rest = folder;
            }
        }
        Self {
            tree,
            folders,
            names: Names::default(),
            priorities: BTreeMap::new(),
            found: Vec::new(),
            at_root: false,
            guesses: 0,
        }
    }

    /// Records an error with its remedy.
    pub fn error(&mut self, id: &'static str, place: &Place, message: impl Into<String>, hint: impl Into<String>) {
        self.found.push(Diagnostic::error(id, place, message).hint(hint));
    }

    /// Records an error about two places.
    pub fn error_about(
        &mut self,
        id: &'static str,
        place: &Place,
        message: impl Into<String>,
        hint: impl Into<String>,
        other: (&Place, &str),
    ) {
        self.found.push(Diagnostic::error(id, place, message).hint(hint).related(other.0, other.1));
    }

    /// Checks that a name is declared.
    pub fn refer(&mut self, kind: &'static str, name: &Spanned<String>) -> bool {
        if self.names.place(kind, &name.value).is_some() {
            return true;
        }
        let first = self.names.of(kind).next();
        let guessing = first.is_some() && self.guesses < MAX_GUESSES;
        let mut near = None;
        let hint = if guessing {
            let words: Vec<&str> = self.names.of(kind).map(|(word, _)| word).collect();
            near = names::nearest(&name.value, words.iter().copied());
            match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => names::did_you_mean(&name.value, &words),
            }
        } else if first.is_some() {
            format!("declare it, or take it out: more than {MAX_GUESSES} names here are declared nowhere")
        } else {
            format!("declare it: `{kind} \"{}\" …`", name.value)
        };
        let message = format!("no {kind} is named `{}`", name.value);
        let mut diagnostic = Diagnostic::error(ids::UNKNOWN_NAME, &name.place, message).hint(hint);
        let shown = match near {
            Some(near) => self.names.place(kind, near).map(|place| (near, place)),
            None => first,
        };
        if let Some((word, place)) = shown {
            diagnostic = diagnostic.related(place, format!("`{word}` is declared here"));
        } else if let Some((_, place)) = self.names.of("cluster").next() {
            diagnostic = diagnostic.related(
                place,
                format!(
                    "no file of this cluster declares {} {kind}",
                    if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
                ),
            );
        }
        self.guesses += usize::from(guessing);
        self.found.push(diagnostic);
        false
    }

    /// The priority that a word names.
    pub fn priority(&mut self, name: Option<Spanned<String>>) -> Priority {
        let Some(name) = name else { return Priority::default() };
        if let Some(class) = self.priorities.get(&name.value) {
            return Priority { rank: class.rank, preempts: class.preempts, name: Some(name.value) };
        }
        let words: Vec<String> = self.priorities.keys().cloned().collect();
        let hint = match words.len() {
            0 => format!("declare it in a file under policies/: `priority \"{}\" rank=50`", name.value),
            _ => names::did_you_mean(&name.value, &words),
        };
        let message = format!("no priority is named `{}`", name.value);
        let mut diagnostic = Diagnostic::error(ids::UNKNOWN_PRIORITY, &name.place, message).hint(hint);
        if let Some(class) = self.priorities.values().next() {
            diagnostic = diagnostic.related(&class.name.place, "priorities are declared here");
        }
        self.found.push(diagnostic);
        Priority::default()
    }

    /// A path resolved by its rule; repository paths come back relative to the root.
    pub fn path(&mut self, entry: &Entry, rule: PathRule) -> Option<Spanned<String>> {
        let written = entry.spanned()?;
        if written.value.is_empty() {
            return None;
        }
        let resolved = self.resolve(&written, rule)?;
        Some(Spanned::new(resolved, written.place))
    }

    /// As [`Self::path`], for a path that is part of a longer text.
    pub fn resolve(&mut self, written: &Spanned<String>, rule: PathRule) -> Option<String> {
        let (text, place) = (&written.value, &written.place);
        if text.chars().any(|c| c.is_control() || is_obeyed(c)) {
            self.error(ids::PATH_LEAVES, place, "a control character in a path", "write the path without it");
            return None;
        }
        let outside = text.starts_with('/') || text == "~" || text.starts_with("~/");
        match (outside, rule) {
            (true, PathRule::Inside) => {
                let message = format!("`{text}` is outside the repository");
                self.error(
                    ids::PATH_LEAVES,
                    place,
                    message,
                    "put the file into the repository; this path is relative to the file that names it",
                );
                return None;
            }
            (true, _) => return Some(text.clone()),
            (false, PathRule::OnNode) => {
                let message = format!("`{text}` is no path on a node");
                self.error(ids::PATH_LEAVES, place, message, "write a path from `/` or `~/`");
                return None;
            }
            (false, _) => {}
        }
        let file = if self.at_root { "" } else { &*place.file };
        let Some(path) = paths::relative_to_file(file, text) else {
            let hint = match rule {
                PathRule::Inside => "paths are relative to the file and stay inside the repository",
                _ => "paths are relative to the file and stay inside the repository; outside it, write `/…` or `~/…`",
            };
            self.error(ids::PATH_LEAVES, place, format!("`{text}` leaves the repository"), hint);
            return None;
        };
        if rule == PathRule::Secret {
            return Some(path);
        }
        if self.exists(&path, place, rule) {
            return Some(path);
        }
        let from_root = paths::normal(text).filter(|other| *other != path && self.is_there(other));
        let hint = match from_root {
            Some(other) => format!(
                "paths are relative to the file that names them; `{other}` exists at the root: write `{}`",
                paths::climb(file, &other)
            ),
            None => {
                let ending =
                    path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
                let all: Vec<&str> =
                    self.tree.iter().map(|(known, _)| known).filter(|known| known.ends_with(ending)).collect();
                match names::nearest(&path, all) {
                    Some(near) => format!("did you mean `{near}`? Paths are relative to the file that names them"),
                    None => "paths are relative to the file that names them".to_owned(),
                }
            }
        };
        self.error(ids::MISSING_FILE, place, format!("`{path}` does not exist"), hint);
        None
    }

    /// Whether a file or folder is in the repository.
    pub fn is_there(&self, path: &str) -> bool {
        self.folders.contains(path) || (path.is_empty() && !self.tree.is_empty()) || self.tree.get(path).is_some()
    }

    /// As [`Self::is_there`]; a refused file counts as there and is reported.
    fn exists(&mut self, path: &str, place: &Place, rule: PathRule) -> bool {
        if self.is_there(path) && !matches!(self.tree.get(path), Some(TreeEntry::Refused(_))) {
            return true;
        }
        let above = path.match_indices('/').map(|(end, _)| &path[..end]);
        let refused = above.chain([path]).find_map(|part| match self.tree.get(part) {
            Some(TreeEntry::Refused(reason)) => Some((part.to_owned(), reason.clone())),
            _ => None,
        });
        let Some((part, reason)) = refused else { return false };
        let hint = match (reason.starts_with("a link"), rule) {
            (true, PathRule::Inside) => "name what the link leads to, inside the repository",
            (true, _) => "name what the link leads to: inside the repository, or from `/` or `~/`",
            (false, _) => "make it a readable file inside the repository",
        };
        let message = match part == path {
            true => format!("`{path}` cannot be used: {reason}"),
            false => format!("`{path}` cannot be used: `{part}` is {reason}"),
        };
        self.error(ids::UNREADABLE, place, message, hint);
        true
    }
}

/// A secret, by reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SecretRef {
    /// In an environment variable of the controller.
    Env(String),
    /// In a file of the controller: relative to the repository, or from `/` or `~`.
    File(String),
}

/// Reads `env=` or `file=` of a node whose table has both.
pub(super) fn secret(node: &Node, cx: &mut Context<'_>) -> Option<Spanned<SecretRef>> {
    let env = node.prop("env");
    let file = node.prop("file");
    match (env, file) {
        (Some(env), None) => env.get(super::values::env_name).map(|name| name.map(SecretRef::Env)),
        (None, Some(file)) => cx.path(file, PathRule::Secret).map(|path| path.map(SecretRef::File)),
        (Some(env), Some(file)) => {
            let hint = "keep one of them";
            cx.error_about(
                ids::CONTRADICTION,
                &file.place,
                "both `env=` and `file=`",
                hint,
                (&env.place, "the other one"),
            );
            None
        }
        (None, None) => {
            // A positional literal has been reported as such.
            if node.arg(0).is_none() {
                let message = format!("`{}` says not where the secret is", node.word());
                cx.error(ids::MISSING_PROPERTY, node.place(), message, "write `env=\"NAME\"` or `file=\"~/…\"`");
            }
            None
        }
    }
}

/// `label "name" "value"` of a block; a name given twice is an error.
pub(super) fn labels<'n>(nodes: impl Iterator<Item = &'n Node>, cx: &mut Context<'_>) -> BTreeMap<String, String> {
    pairs(nodes, cx, "label")
}

/// `env "NAME" "value"` of a block.
pub(super) fn env<'n>(nodes: impl Iterator<Item = &'n Node>, cx: &mut Context<'_>) -> BTreeMap<String, String> {
    let nodes: Vec<&Node> = nodes.collect();
    for name in nodes.iter().filter_map(|node| node.arg(0)).filter_map(Entry::spanned) {
        if crate::engine::owned_environment().contains(&name.value.as_str()) {
            cx.error(
                ids::OWNED_ARGUMENT,
                &name.place,
                format!("`{}` is set by flock", name.value),
                "remove it: the plan chooses devices, and every instance gets a key of its own",
            );
        }
    }
    pairs(nodes.into_iter(), cx, "environment variable")
}

fn pairs<'n>(nodes: impl Iterator<Item = &'n Node>, cx: &mut Context<'_>, what: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for node in nodes {
        let (Some(name), Some(value)) = (node.arg(0).and_then(Entry::spanned), node.arg(1)) else { continue };
        if let Some(first) = places.get(&name.value) {
            let message = format!("the {what} `{}` is given twice", name.value);
            cx.error_about(ids::DUPLICATE_CHILD, &name.place, message, "keep one", (first, "first given here"));
            continue;
        }
        let Some(value) = value.get(super::values::scalar) else { continue };
        places.insert(name.value.clone(), name.place);
        found.insert(name.value, value.value);
    }
    found
}
