//! Where weights come from: `hf:owner/name[@rev][#file-or-quantisation]`, `path:…`, `on-node:/…`, `https://…`.

use std::fmt;

use super::context::{Context, PathRule};
use super::syntax::Entry;
use super::values::{self, Wrong};
use super::{Source, ids};
use crate::base::{Spanned, is_obeyed};

fn wrong<T>(message: impl Into<String>, hint: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong::new(ids::BAD_SOURCE, message, hint))
}

/// Reads a source; a URL's digest comes from a property and is empty here.
pub(super) fn parse(text: &str) -> Result<Source, Wrong> {
    if text.chars().any(|c| c.is_control() || is_obeyed(c)) {
        return wrong("a control character in a source", "remove it");
    }
    if let Some(rest) = text.strip_prefix("hf:") {
        return hub(rest);
    }
    if let Some(path) = text.strip_prefix("path:") {
        if path.is_empty() {
            return wrong("`path:` without a path", "write `path:weights/model.gguf`");
        }
        return Ok(Source::Path(path.to_owned()));
    }
    if let Some(path) = text.strip_prefix("on-node:") {
        if !(path.starts_with('/') || path.starts_with("~/")) || path.split('/').any(|part| part == "..") {
            return wrong(format!("`{path}` is no absolute path"), "write `on-node:/data/…`");
        }
        return Ok(Source::OnNode(path.to_owned()));
    }
    if text.starts_with("https://") {
        let url = values::url(&super::syntax::Value::Text { text: text.to_owned(), bare: false })?;
        return Ok(Source::Url { url, sha256: String::new() });
    }
    if text.starts_with("http://") {
        return wrong("weights over plain http", "write `https://…` with `sha256=`");
    }
    let parts: Vec<&str> = text.split('/').collect();
    let hint = match parts[..] {
        [".", ..] | ["..", ..] | ["~", ..] | ["", ..] => {
            format!("write \"path:{text}\" for files with the controller, \"on-node:{text}\" for files on the nodes")
        }
        [_, _] => format!("write \"hf:{text}\" for a repository of the hub"),
        _ => "write `hf:owner/name`, `path:…`, `on-node:/…` or `https://…`".to_owned(),
    };
    wrong(format!("`{text}` has no scheme"), hint)
}

fn hub(rest: &str) -> Result<Source, Wrong> {
    const HINT: &str = "write `hf:owner/name`, with `@revision` and `#file-or-quantisation` behind it if wanted";
    let (rest, selector) = match rest.split_once('#') {
        Some((rest, selector)) => (rest, Some(selector)),
        None => (rest, None),
    };
    let (repository, revision) = match rest.split_once('@') {
        Some((repository, revision)) => (repository, Some(revision)),
        None => (rest, None),
    };
    let part_fine = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['.', '-'])
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    match repository.split('/').collect::<Vec<_>>()[..] {
        [owner, name] if part_fine(owner) && part_fine(name) => {}
        _ => return wrong(format!("`{repository}` is no repository of the hub"), HINT),
    }
    if revision.is_some_and(|part| !tail_fine(part)) {
        return wrong("the revision behind `@` is empty or not valid", HINT);
    }
    if selector.is_some_and(|part| !tail_fine(part)) {
        return wrong("what follows `#` is empty or not valid", HINT);
    }
    Ok(Source::Hub {
        repository: repository.to_owned(),
        revision: revision.map(str::to_owned),
        selector: selector.map(str::to_owned),
    })
}

/// Reads a source as the config writes it.
///
/// # Errors
/// What is wrong, and what to write instead.
pub fn parse_source(text: &str) -> Result<Source, (String, String)> {
    parse(text).map_err(|wrong| (wrong.message, wrong.hint))
}

/// Whether a text may stand behind `@` or `#`.
fn tail_fine(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with(['-', '/'])
        && !part.split('/').any(|p| p == "..")
        && part.chars().all(|c| !c.is_whitespace() && c != '@' && c != '#' && !c.is_control() && !is_obeyed(c))
}

impl fmt::Display for Source {
    /// As the config writes it, a `revision=` behind its `@`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub { repository, revision, selector } => {
                write!(f, "hf:{repository}")?;
                revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
                selector.iter().try_for_each(|selector| write!(f, "#{selector}"))
            }
            Self::Path(path) => write!(f, "path:{path}"),
            Self::OnNode(path) => write!(f, "on-node:{path}"),
            Self::Url { url, .. } => f.write_str(url),
        }
    }
}

/// A source with its `revision=` and `sha256=`, its path resolved.
pub(super) fn decode(
    entry: &Entry,
    revision: Option<&Entry>,
    digest: Option<&Entry>,
    cx: &mut Context<'_>,
) -> Option<Spanned<Source>> {
    let written = entry.spanned()?;
    let mut source = parse(&written.value).ok()?;
    match &mut source {
        Source::Hub { revision: pinned, .. } => {
            if let Some(extra) = revision {
                if pinned.is_some() {
                    cx.error_about(
                        ids::CONTRADICTION,
                        &extra.place,
                        "a revision here and one behind `@`",
                        "keep one of them",
                        (&written.place, "the other one"),
                    );
                }
                let extra = extra.spanned();
                if let Some(text) = extra.as_ref().filter(|text| !tail_fine(&text.value)) {
                    cx.error(
                        ids::BAD_SOURCE,
                        &text.place,
                        "the revision is empty or not valid",
                        "name a branch, tag or commit",
                    );
                    return None;
                }
                *pinned = extra.map(|text| text.value);
            }
        }
        Source::Path(path) => {
            let inner = Spanned::new(path.clone(), written.place.clone());
            *path = cx.resolve(&inner, PathRule::Anywhere)?;
        }
        Source::OnNode(_) => {}
        Source::Url { sha256, .. } => match digest.and_then(|entry| entry.get(values::sha256)) {
            Some(digest) => *sha256 = digest.value,
            None if digest.is_none() => {
                cx.error(
                    ids::BAD_SOURCE,
                    &written.place,
                    "weights from a web address without their digest",
                    "add `sha256=\"…\"`",
                );
                return None;
            }
            None => return None,
        },
    }
    if !matches!(source, Source::Hub { .. })
        && let Some(extra) = revision
    {
        cx.error(ids::CONTRADICTION, &extra.place, "`revision=` of something that is no hub repository", "remove it");
    }
    if !matches!(source, Source::Url { .. })
        && let Some(extra) = digest
    {
        cx.error(
            ids::CONTRADICTION,
            &extra.place,
            "`sha256=` of something that is no web address",
            "remove it; `flock lock` records digests",
        );
    }
    Some(Spanned::new(source, written.place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_form_in_full() {
        let source = parse("hf:TheBloke/x-GGUF@main#Q4_K_M").expect("valid");
        let expected = Source::Hub {
            repository: "TheBloke/x-GGUF".into(),
            revision: Some("main".into()),
            selector: Some("Q4_K_M".into()),
        };
        assert_eq!(source, expected);
    }

    #[test]
    fn a_source_is_shown_as_it_is_written() {
        for text in ["hf:a/b", "hf:a/b@v1", "hf:a/b#Q4_K_M", "hf:a/b@refs/pr/1#x/y.gguf", "path:x", "on-node:/x"] {
            assert_eq!(parse(text).expect("valid").to_string(), text);
        }
    }

    #[test]
    fn a_revision_is_what_could_stand_behind_the_at() {
        let load = |revision: &str| {
            let text = format!("cluster \"c\"\nmodel \"m\" {{ source \"hf:a/b\" revision=\"{revision}\" }}\n");
            let mut tree = crate::base::Tree::new();
            tree.insert("cluster.kdl", crate::base::TreeEntry::File(text.into_bytes()));
            crate::config::load(&tree)
        };
        let desired = load("refs/pr/1").desired.expect("valid");
        assert_eq!(desired.models["m"].source.as_ref().expect("a source").value.to_string(), "hf:a/b@refs/pr/1");
        for wrong in ["", "../x", "/x", "a b", "a#b", "a@b", "-x"] {
            let found = load(wrong).diagnostics;
            assert!(found.iter().any(|one| one.id == ids::BAD_SOURCE), "{wrong:?}: {found:?}");
        }
    }

    #[test]
    fn what_is_refused_says_what_to_write() {
        assert!(parse("meta/llama").expect_err("no scheme").hint.contains("hf:meta/llama"));
        assert!(parse("./x.gguf").expect_err("no scheme").hint.contains("path:./x.gguf"));
        assert!(parse("hf:x").is_err());
        assert!(parse("hf:../x").is_err());
        assert!(parse("hf:a/b@").is_err());
        assert!(parse("http://x/y").is_err());
        assert!(parse("on-node:x").is_err());
    }
}
