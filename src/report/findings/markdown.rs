//! Findings as a comment on a pull request: a table, cut before the host would refuse it.

use super::rules::by_weight;
use crate::base::is_invisible;
use crate::base::{Diagnostic, Severity};
use crate::report::style::clean;
use crate::report::words::count;

/// Most characters of a comment. GitHub takes 65,536; the rest is for what others put around it.
pub const MAX_COMMENT: usize = 60_000;

/// The first line, by which a workflow finds the comment that it wrote before.
const MARKER: &str = "<!-- flock validate -->";

/// The findings as markdown, errors first. `verdict` is one word or two for the heading; what is cut is said.
pub fn findings_markdown(diagnostics: &[Diagnostic], verdict: &str) -> String {
    let errors = diagnostics.iter().filter(|one| one.severity == Severity::Error).count();
    let warnings = diagnostics.len() - errors;
    let mut out = format!("{MARKER}\n### flock validate: {}\n", text(verdict));
    if diagnostics.is_empty() {
        return out;
    }
    out.push_str(&format!("\n{}, {}\n\n", count(errors, "error"), count(warnings, "warning")));
    out.push_str("| | Where | What | Hint |\n| --- | --- | --- | --- |\n");
    let all = by_weight(diagnostics);
    let mut used = out.chars().count();
    // Room for the sentence about what was cut.
    let room = MAX_COMMENT - 300;
    for (index, one) in all.iter().enumerate() {
        let row = row(one);
        used += row.chars().count();
        if used > room {
            out.push_str(&format!(
                "\n**{} of {} are left out here**: a comment holds {MAX_COMMENT} characters. `flock validate` lists them all.\n",
                all.len() - index,
                count(all.len(), "finding"),
            ));
            break;
        }
        out.push_str(&row);
    }
    out
}

fn row(one: &Diagnostic) -> String {
    let word = match one.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let place = match (&one.file, one.line, one.column) {
        (Some(file), Some(line), Some(column)) => text(&format!("{file}:{line}:{column}")),
        _ => String::new(),
    };
    let mut what = text(&shortened(&one.message));
    for related in &one.related {
        let place = format!("{}:{}:{}", related.file, related.line, related.column);
        what.push_str(&format!("<br>{}: {}", text(&place), text(&shortened(&related.message))));
    }
    let hint = one.hint.as_deref().map(|hint| text(&shortened(hint))).unwrap_or_default();
    format!("| {word}&nbsp;{} | {place} | {what} | {hint} |\n", one.id)
}

/// One finding alone must not fill the comment.
fn shortened(text: &str) -> String {
    const MOST: usize = 1000;
    if text.chars().count() <= MOST { text.to_owned() } else { text.chars().take(MOST).chain("…".chars()).collect() }
}

/// A text in a cell. What stands between backticks is code; all else is literal, whatever a config repository of
/// somebody else put into it: no markup, no link, no mention.
fn text(text: &str) -> String {
    let text = clean(text).replace(['\n', '\t'], " ").replace(is_invisible, "?");
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return literal(&text);
    }
    let mut out = String::new();
    for (index, part) in parts.iter().enumerate() {
        if index.is_multiple_of(2) {
            out.push_str(&literal(part));
        } else if part.trim().is_empty() {
            out.push_str(&literal(&format!("`{part}`")));
        } else {
            out.push_str(&format!("`{}`", part.replace('|', "\\|")));
        }
    }
    out
}

fn literal(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' | '<' | '>' | '@' | '`' | '#' | '|' => out.push_str(&format!("&#{};", u32::from(c))),
            '\\' | '*' | '_' | '[' | ']' | '~' | '!' | '$' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    // A bare address would become a link.
    out.replace("://", ":&#47;/").replace("www.", "www&#46;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::at;

    #[test]
    fn a_table_with_errors_first_in_which_nothing_is_markup() {
        let found = [
            Diagnostic::warning("FLK190", &at("b.kdl", 2), "`gateway` is accepted | not enforced"),
            Diagnostic::error("FLK110", &at("a_b.kdl", 1), "see @org <img> [x](https://e.org)\n`a|b`")
                .hint("did you mean `node`?")
                .related(&at("c.kdl", 3), "first"),
        ];
        assert_eq!(
            findings_markdown(&found, "invalid"),
            "<!-- flock validate -->\n### flock validate: invalid\n\n1 error, 1 warning\n\n\
             | | Where | What | Hint |\n| --- | --- | --- | --- |\n\
             | error&nbsp;FLK110 | a\\_b.kdl:1:5 | see &#64;org &#60;img&#62; \\[x\\](https:&#47;/e.org) `a\\|b`<br>c.kdl:3:5: first | did you mean `node`? |\n\
             | warning&nbsp;FLK190 | b.kdl:2:5 | `gateway` is accepted &#124; not enforced |  |\n"
        );
        assert_eq!(findings_markdown(&[], "valid"), "<!-- flock validate -->\n### flock validate: valid\n");
        assert_eq!(text("a ` b"), "a &#96; b");
        assert_eq!(text("a\u{202e}b `c\u{200b}d\u{2066}`\u{feff}"), "a?b `c?d?`?");
    }

    #[test]
    fn a_long_table_is_cut_and_says_so() {
        let long = "é".repeat(3000);
        let found: Vec<_> = (1..=2000).map(|line| Diagnostic::error("FLK110", &at("a.kdl", line), &*long)).collect();
        let text = findings_markdown(&found, "invalid");
        assert_eq!(MAX_COMMENT, 60_000, "a host refuses 65,536, and others add a header");
        assert!(text.chars().count() <= MAX_COMMENT, "{}", text.chars().count());
        assert!(text.chars().count() > MAX_COMMENT - 2000, "{}", text.chars().count());
        let shown = text.lines().filter(|line| line.starts_with("| error")).count();
        assert!(text.contains(&format!("**{} of 2000 findings are left out here**", 2000 - shown)), "{text}");
    }
}
