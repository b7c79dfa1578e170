//! Holds a node against its table. After this, decoders read words without looking back: whatever the
//! table does not know, or knows otherwise, has been reported here at its exact place.

use std::collections::BTreeMap;

use super::schema::{Argument, Count, NodeSpec, Property};
use super::syntax::{Entry, Node, Value};
use super::{ids, names};
use crate::base::{Diagnostic, Place};

/// Checks nodes that stand side by side against the words that may stand there.
pub(super) fn siblings(
    nodes: &[Node],
    known: &[&'static NodeSpec],
    parent: Option<&'static NodeSpec>,
    found: &mut Vec<Diagnostic>,
) {
    for (index, node) in nodes.iter().enumerate() {
        let Some(spec) = known.iter().find(|spec| spec.word == node.word()) else {
            unknown_word(node, known, parent, found);
            secrets_below(node, found);
            continue;
        };
        if !spec.repeatable
            && parent.is_some()
            && let Some(first) = nodes[..index].iter().find(|other| other.word() == node.word())
        {
            found.push(
                Diagnostic::error(ids::DUPLICATE_CHILD, node.place(), format!("`{}` is given twice", spec.word))
                    .hint("keep one")
                    .related(first.place(), "first given here"),
            );
        }
        check(node, spec, known, found);
    }
}

fn unknown_word(
    node: &Node,
    known: &[&'static NodeSpec],
    parent: Option<&'static NodeSpec>,
    found: &mut Vec<Diagnostic>,
) {
    let word = node.word();
    let words: Vec<&str> = known.iter().map(|spec| spec.word).collect();
    let clean = word.trim_end_matches([':', ',']);
    let is_property = parent.is_some_and(|parent| parent.properties.iter().any(|property| property.name == clean));
    let message = match parent {
        Some(parent) => format!("unknown word `{}` in `{}`", shortened(word), parent.word),
        None => format!("unknown word `{}`", shortened(word)),
    };
    let colon = word.ends_with(':') && known.iter().any(|spec| spec.word == clean);
    let hint = match parent {
        _ if names::invisible(word).is_some() => invisible(word),
        _ if word == "-" => "KDL has no `-`: every item of a list is a line or a block of its own".to_owned(),
        _ if word.starts_with("--") || word.starts_with('%') => "comments begin with `//`".to_owned(),
        _ if colon => {
            let value = node.arg(0).map_or("…".to_owned(), |entry| written(&entry.value.value));
            let takes = known.iter().any(|spec| spec.word == clean && !spec.children.is_empty());
            let block = if takes { " { … }" } else { "" };
            format!("KDL has no `:`: write `{clean} {value}{block}`")
        }
        Some(parent) if is_property => {
            let value = node.arg(0).map_or("…".to_owned(), |entry| written(&entry.value.value));
            format!("`{clean}` is a property: write `{} … {clean}={value}`", parent.word)
        }
        Some(parent) => {
            let properties: Vec<&str> = parent.properties.iter().map(|property| property.name).collect();
            match (names::nearest(clean, words.iter().copied()), names::nearest(clean, properties)) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(near)) => format!("did you mean the property `{near}=`?"),
                (None, None) if of_child(clean, node, parent).is_some() => {
                    of_child(clean, node, parent).unwrap_or_default()
                }
                (None, None) => match known_elsewhere(clean, Some(parent)) {
                    Some(elsewhere) => format!("`{clean}` goes {elsewhere}"),
                    None => names::did_you_mean(clean, &words),
                },
            }
        }
        None => match (names::nearest(clean, words.iter().copied()), known_elsewhere(clean, parent)) {
            (_, Some(elsewhere)) => format!("`{clean}` goes {elsewhere}"),
            (Some(near), None) => format!("did you mean `{near}`?"),
            (None, None) => names::did_you_mean(clean, &words),
        },
    };
    found.push(Diagnostic::error(ids::UNKNOWN_NODE, node.place(), message).hint(hint));
}

/// Where a word is known that is unknown here.
fn known_elsewhere(word: &str, parent: Option<&NodeSpec>) -> Option<String> {
    let inside =
        parent.and_then(|spec| spec.children.iter().find(|child| child.children.iter().any(|c| c.word == word)));
    if let Some(inside) = inside {
        return Some(format!("into its `{}` block", inside.word));
    }
    let top = super::schema::top_level();
    if top.iter().any(|spec| spec.word == word) {
        return Some("at the top of a file, outside any block".to_owned());
    }
    let has = |spec: &&&NodeSpec| spec.children.iter().any(|child| child.word == word);
    let owners: Vec<&str> = top.iter().filter(has).map(|spec| spec.word).collect();
    (!owners.is_empty()).then(|| format!("into a {} block", names::list(&owners)))
}

/// The hint for a line that is a property of one of the block's own words: `min` of `replicas`.
fn of_child(word: &str, node: &Node, parent: &NodeSpec) -> Option<String> {
    let has = |spec: &&&NodeSpec| spec.properties.iter().any(|property| property.name == word);
    let owners: Vec<&str> = parent.children.iter().filter(has).map(|spec| spec.word).collect();
    let first = owners.first()?;
    let value = node.arg(0).map_or("…".to_owned(), |entry| written(&entry.value.value));
    Some(format!("`{word}` is a property of {}: write `{first} {word}={value}`", names::list(&owners)))
}

fn invisible(word: &str) -> String {
    let found = names::invisible(word).map_or(0, u32::from);
    format!("an invisible character (U+{found:04X}) stands in it: type the word anew")
}

/// What is wrong with a text that is meant to be in quotes and is not, whatever it should be; and whether it begins
/// with a quote.
fn quotes(entry: &Entry) -> Option<(bool, Diagnostic)> {
    let Value::Text { text, bare: true } = &entry.value.value else { return None };
    let odd = |c: char| matches!(c, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}' | '\u{2039}' | '\u{203a}');
    let quote = |c: char| odd(c) || c == '\'';
    let (first, last) = (text.chars().next()?, text.chars().next_back()?);
    if !quote(first) && !odd(last) {
        return None;
    }
    let what = if first == '\'' { "single quotes are letters like any other" } else { "typographic quotes" };
    let more = if quote(last) && text.chars().count() > 1 { "" } else { "…" };
    let inner = shortened(text.trim_matches(quote));
    let hint = format!("texts stand in straight double quotes: \"{inner}{more}\"");
    Some((quote(first), Diagnostic::error(ids::SYNTAX, entry.at(), what).hint(hint)))
}

fn check(node: &Node, spec: &'static NodeSpec, known: &[&'static NodeSpec], found: &mut Vec<Diagnostic>) {
    for place in node.annotation.iter().chain(node.entries.iter().filter_map(|entry| entry.annotation.as_ref())) {
        found.push(
            Diagnostic::error(ids::ANNOTATION, place, "a type annotation has no meaning here")
                .hint("remove it, or quote the text if the parentheses belong to it"),
        );
    }
    // A text in such quotes falls into several words: what follows from that is not said.
    let mut quoted: Vec<(bool, Diagnostic)> = node.entries.iter().filter_map(quotes).collect();
    if quoted.iter().any(|(begins, _)| *begins) {
        quoted.retain(|(begins, _)| *begins);
    }
    if quoted.is_empty() {
        let end = arguments(node, spec, known, found);
        properties(&node.entries[..end], node, spec, found);
    }
    found.extend(quoted.into_iter().map(|(_, one)| one));
    secrets(node, found);
    match &node.children {
        Some(children) if spec.children.is_empty() => {
            let place = children.first().map_or_else(|| node.place(), Node::place);
            found.push(
                Diagnostic::error(ids::NO_BLOCK, place, format!("`{}` takes no block", spec.word))
                    .hint(format!("write it on one line: `{}`", shape(spec))),
            );
        }
        Some(children) => siblings(children, spec.children, Some(spec), found),
        None => {}
    }
    if !spec.acts {
        not_enforced(node.place(), &format!("`{}`", spec.word), found);
    }
}

fn not_enforced(place: &Place, what: &str, found: &mut Vec<Diagnostic>) {
    found.push(
        Diagnostic::warning(ids::NOT_ENFORCED, place, format!("{what} is accepted and not yet enforced"))
            .hint("this version does not act on it"),
    );
}

/// How a node is written, such as `reserve vram=… ram=…`.
fn shape(spec: &NodeSpec) -> String {
    let mut out = spec.word.to_owned();
    for argument in spec.arguments {
        out.push_str(&format!(" <{}>", argument.name));
    }
    for property in spec.properties {
        out.push_str(&format!(" {}=…", property.name));
    }
    out
}

/// Returns how many entries are this node's own: the rest belongs to a node that begins on the same line.
fn arguments(node: &Node, spec: &NodeSpec, known: &[&NodeSpec], found: &mut Vec<Diagnostic>) -> usize {
    let all = node.entries.len();
    let given: Vec<&Entry> = node.entries.iter().filter(|entry| entry.key.is_none()).collect();
    let mut rest = given.as_slice();
    for Argument { name, ty, count } in spec.arguments {
        let take = if *count == Count::Many { rest.len() } else { rest.len().min(1) };
        if take == 0 && *count != Count::Optional {
            found.push(
                Diagnostic::error(
                    ids::MISSING_ARGUMENT,
                    node.place(),
                    format!("`{}` needs {}", spec.word, article(name)),
                )
                .hint(format!("write `{} {}`", spec.word, example(name))),
            );
        }
        for entry in &rest[..take] {
            if let Err(wrong) = ty.check(&entry.value.value) {
                let mut hint = wrong.hint;
                if let Some(swallowed) = swallowed(node, entry, spec, known) {
                    hint = swallowed;
                }
                found.push(Diagnostic::error(wrong.id, entry.at(), wrong.message).hint(hint));
            }
        }
        rest = &rest[take..];
    }
    let Some(extra) = rest.first() else { return all };
    if matches!(spec.word, "key" | "token" | "secret") && spec.arguments.is_empty() {
        found.push(
            Diagnostic::error(ids::LITERAL_SECRET, extra.at(), format!("a literal `{}`", spec.word))
                .hint(format!("write `{} env=\"NAME\"`, the name of a variable that holds it", spec.word)),
        );
        return all;
    }
    let takes = match spec.arguments.len() {
        0 => "no argument".to_owned(),
        1 => "one argument".to_owned(),
        count => format!("{count} arguments"),
    };
    let message = format!("`{}` takes {takes}; {} is too many", spec.word, extra.value.value.describe());
    let hint = swallowed(node, extra, spec, known).unwrap_or_else(|| match (&extra.value.value, spec.properties) {
        (value, [only]) if spec.arguments.is_empty() => {
            format!("write `{} {}={}`", spec.word, only.name, written(value))
        }
        (_, [_, ..]) if spec.arguments.is_empty() => format!("write `{}`", shape(spec)),
        (Value::Text { text, bare: true }, _) => format!(
            "everything up to the end of the line or `;` belongs to `{}`; if `{}` begins a node of its own, put it on its own line or after `;`",
            spec.word,
            shortened(text)
        ),
        _ => format!("everything up to the end of the line or `;` belongs to `{}`; write `{}`", spec.word, shape(spec)),
    });
    found.push(Diagnostic::error(ids::EXTRA_ARGUMENT, extra.at(), message).hint(hint));
    let next = matches!(&extra.value.value, Value::Text { text, bare: true } if known.iter().any(|k| k.word == *text));
    if next { node.entries.iter().position(|entry| std::ptr::eq(entry, *extra)).unwrap_or(all) } else { all }
}

/// The hint for an argument that is really a property, or the next node on the same line.
fn swallowed(node: &Node, entry: &Entry, spec: &NodeSpec, known: &[&NodeSpec]) -> Option<String> {
    let Value::Text { text, bare } = &entry.value.value else { return None };
    let word = text.trim_end_matches([':', ',']);
    let after = node.entries.iter().skip_while(|other| !std::ptr::eq(*other, entry)).nth(1);
    let value = after.filter(|after| after.key.is_none()).map_or("…".to_owned(), |after| written(&after.value.value));
    if spec.properties.iter().any(|property| property.name == word) {
        return Some(format!("`{word}` is a property of `{}`: write `{word}={value}`", spec.word));
    }
    if *bare && known.iter().any(|sibling| sibling.word == word) {
        return Some(format!(
            "everything up to the end of the line belongs to `{}`: put `{word}` on its own line, or write `;` before it",
            spec.word
        ));
    }
    if *bare && spec.children.iter().any(|child| child.word == word) {
        return Some(format!("`{word}` goes into the block of `{}`: `{{ {word} {value} }}`", spec.word));
    }
    None
}

fn article(name: &str) -> String {
    let vowel = name.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {name}", if vowel { "an" } else { "a" })
}

fn example(name: &str) -> String {
    format!("\"{name}\"")
}

fn properties(entries: &[Entry], node: &Node, spec: &NodeSpec, found: &mut Vec<Diagnostic>) {
    let mut seen: BTreeMap<&str, &Place> = BTreeMap::new();
    for entry in entries {
        let Some(key) = &entry.key else { continue };
        if let Some(first) = seen.get(key.value.as_str()) {
            let message = format!("`{}` is given twice", shortened(&key.value));
            found.push(
                Diagnostic::error(ids::DUPLICATE_PROPERTY, &key.place, message)
                    .hint("keep one")
                    .related(first, "first given here"),
            );
            continue;
        }
        seen.insert(&key.value, &key.place);
        let Some(Property { ty, acts, .. }) = spec.properties.iter().find(|property| property.name == key.value) else {
            let child = spec.children.iter().any(|child| child.word == key.value);
            let message = format!("`{}` has no property `{}`", spec.word, shortened(&key.value));
            let known: Vec<&str> = spec.properties.iter().map(|property| property.name).collect();
            let hint = if names::invisible(&key.value).is_some() {
                invisible(&key.value)
            } else if child {
                format!("`{0}` is a line of its own in the block: `{0} {1}`", key.value, written(&entry.value.value))
            } else if known.is_empty() {
                match names::nearest(&key.value, spec.children.iter().map(|child| child.word)) {
                    Some(near) => format!("did you mean `{near}`, on a line of its own in the block?"),
                    None => format!("write `{}`", shape(spec)),
                }
            } else {
                names::did_you_mean(&key.value, &known)
            };
            found.push(Diagnostic::error(ids::UNKNOWN_PROPERTY, &key.place, message).hint(hint));
            continue;
        };
        if let Err(wrong) = ty.check(&entry.value.value) {
            let message = format!("`{}`: {}", key.value, wrong.message);
            found.push(Diagnostic::error(wrong.id, entry.at(), message).hint(wrong.hint));
        }
        if !acts {
            not_enforced(&key.place, &format!("`{}=`", key.value), found);
        }
    }
    for property in spec.properties.iter().filter(|property| property.required) {
        if !seen.contains_key(property.name) {
            let message = format!("`{}` needs `{}=`", spec.word, property.name);
            found.push(Diagnostic::error(ids::MISSING_PROPERTY, node.place(), message).hint(format!(
                "`{}=` is {}",
                property.name,
                property.ty.describe()
            )));
        }
    }
}

/// The same in a node that is not known, and in its block.
fn secrets_below(node: &Node, found: &mut Vec<Diagnostic>) {
    secrets(node, found);
    node.children.iter().flatten().for_each(|child| secrets_below(child, found));
}

/// Literal keys: the well-known forms anywhere, chance-like texts where secrets are usual.
fn secrets(node: &Node, found: &mut Vec<Diagnostic>) {
    let secret_word = matches!(node.word(), "key" | "token" | "secret");
    let variable = if matches!(node.word(), "env" | "argument") {
        node.entries.iter().find(|entry| entry.key.is_none()).and_then(Entry::text)
    } else {
        None
    };
    let secret_variable = variable.is_some_and(|name| {
        let name = name.to_ascii_uppercase();
        ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"].iter().any(|word| name.contains(word))
    });
    let told = |entry: &Entry, found: &[Diagnostic]| {
        let at = entry.at();
        found.iter().any(|one| {
            one.id == ids::LITERAL_SECRET
                && one.file.as_deref() == Some(at.file.as_ref())
                && (one.line, one.column) == (Some(at.line), Some(at.column))
        })
    };
    for (index, entry) in node.entries.iter().enumerate() {
        let Some(text) = entry.text() else { continue };
        if told(entry, found) {
            continue;
        }
        let digest = entry.key.as_ref().is_some_and(|key| key.value == "sha256");
        let random = match (secret_word, variable.is_some() && index > 0) {
            (true, _) => names::is_random(text, 24),
            (_, true) if secret_variable => names::is_random(text, 12),
            (_, true) => names::is_random(text, 32),
            _ => false,
        };
        if !digest && (names::is_known_key(text) || random) {
            let hint = "secrets are only references, such as `key env=\"NAME\"`; replace this key at its issuer, it is in the history now";
            found.push(
                Diagnostic::error(ids::LITERAL_SECRET, entry.at(), "this looks like a literal secret").hint(hint),
            );
        }
    }
}

fn written(value: &Value) -> String {
    match value {
        // A hint is printed, and kept in logs: it never repeats a key.
        Value::Text { text, .. } if names::is_known_key(text) || names::is_random(text, 24) => "…".to_owned(),
        Value::Text { text, .. } => format!("\"{}\"", shortened(text)),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(value) => format!("#{value}"),
        Value::Null => "#null".to_owned(),
        Value::NotFinite(word) => (*word).to_owned(),
    }
}

fn shortened(text: &str) -> String {
    let escaped: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().count() > 60 { format!("{escaped}…") } else { escaped.replace("\\\"", "\"") }
}
