//! The lines of an ssh config file, as ssh splits them: keywords, words, quotes, comments. What they say about a host
//! is [`super::client_config`]'s. Pure.

use std::sync::Arc;

/// A file, its includes already inside it.
#[derive(Debug, Clone)]
pub(super) struct ConfigFile {
    pub(super) name: Arc<str>,
    pub(super) lines: Vec<Line>,
}

/// A line that says something.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) item: Item,
}

#[derive(Debug, Clone)]
pub(super) enum Item {
    Host(Vec<String>),
    Match(Vec<String>),
    Include(Vec<ConfigFile>),
    /// A keyword in lower case and its words.
    Setting(String, Vec<String>),
    /// Cannot be read; it matters only where it applies.
    Broken(String),
}

/// Reads the text of a file. `include` gives the files that a pattern names.
pub(super) fn parse(
    name: &str,
    text: &str,
    include: &mut dyn FnMut(&str) -> Result<Vec<ConfigFile>, String>,
) -> ConfigFile {
    let name: Arc<str> = name.into();
    let mut lines = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        lines.push(Line { number: index + 1, item: item(text, include) });
    }
    ConfigFile { name, lines }
}

fn item(text: &str, include: &mut dyn FnMut(&str) -> Result<Vec<ConfigFile>, String>) -> Item {
    let end = text.find(|c: char| c.is_ascii_whitespace() || c == '=').unwrap_or(text.len());
    let (keyword, rest) = text.split_at(end);
    let keyword = keyword.trim_matches('"').to_ascii_lowercase();
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    let words = match words(rest) {
        Ok(words) => words,
        Err(problem) => return Item::Broken(format!("{problem} after `{keyword}`")),
    };
    match keyword.as_str() {
        "host" => Item::Host(words),
        "match" => Item::Match(words),
        "include" => {
            let mut files = Vec::new();
            for pattern in &words {
                match include(pattern) {
                    Ok(more) => files.extend(more),
                    Err(problem) => return Item::Broken(problem),
                }
            }
            Item::Include(files)
        }
        _ => Item::Setting(keyword, words),
    }
}

/// Words with quotes, backslashes and a comment at the end, as ssh splits them.
fn words(text: &str) -> Result<Vec<String>, &'static str> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(char::is_ascii_whitespace).is_some() {}
        if matches!(chars.peek(), None | Some('#')) {
            return Ok(found);
        }
        let mut word = String::new();
        let mut quote = None;
        loop {
            match chars.next() {
                None if quote.is_some() => return Err("a quote that does not end"),
                None => break,
                Some('\\') => match chars.peek() {
                    Some(&next) if matches!(next, '\'' | '"' | '\\') || (quote.is_none() && next == ' ') => {
                        word.push(next);
                        chars.next();
                    }
                    _ => word.push('\\'),
                },
                Some(c) if quote == Some(c) => quote = None,
                Some(c) if quote.is_none() && (c == '"' || c == '\'') => quote = Some(c),
                Some(c) if quote.is_none() && c.is_ascii_whitespace() => break,
                Some(c) => word.push(c),
            }
        }
        found.push(word);
    }
}
