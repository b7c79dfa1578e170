//! Findings about a config repository: with the source line and a mark under it, or as JSON.

use serde::Serialize;

use super::style::{Ink, Style, clean};
use super::words::count;
use crate::base::{Diagnostic, Severity, Tree, TreeEntry};
use crate::config::ids;

/// Longer source lines are shown from near the finding on.
const SOURCE_WIDTH: usize = 160;

/// The answer of `flock validate --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct Validation<'a> {
    /// 1.
    pub format: u32,
    /// Whether there is no error.
    pub valid: bool,
    /// Number of errors.
    pub error_count: usize,
    /// Number of warnings.
    pub warning_count: usize,
    /// The findings.
    pub diagnostics: &'a [Diagnostic],
}

impl<'a> Validation<'a> {
    /// Counts findings.
    pub fn of(diagnostics: &'a [Diagnostic]) -> Self {
        let error_count = diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
        Self {
            format: 1,
            valid: error_count == 0,
            error_count,
            warning_count: diagnostics.len() - error_count,
            diagnostics,
        }
    }
}

/// All findings with their source lines, and a closing line. `tree` is where the lines come from.
pub fn diagnostics_text(diagnostics: &[Diagnostic], tree: &Tree, style: &Style) -> String {
    let mut out = String::new();
    for diagnostic in diagnostics {
        out.push_str(&diagnostic_text(diagnostic, diagnostics, tree, style));
        out.push('\n');
    }
    let answer = Validation::of(diagnostics);
    let (errors, warnings) = (count(answer.error_count, "error"), count(answer.warning_count, "warning"));
    match (answer.error_count, answer.warning_count) {
        (0, 0) => out.push_str(&style.paint(Ink::Good, "valid")),
        (0, _) => out.push_str(&format!("{}, {warnings}", style.paint(Ink::Good, "valid"))),
        (_, 0) => out.push_str(&format!("{}: {errors}", style.paint(Ink::Bad, "invalid"))),
        _ => out.push_str(&format!("{}: {errors}, {warnings}", style.paint(Ink::Bad, "invalid"))),
    }
    out.push('\n');
    out
}

/// One finding.
pub fn diagnostic_text(diagnostic: &Diagnostic, all: &[Diagnostic], tree: &Tree, style: &Style) -> String {
    let (word, ink) = match diagnostic.severity {
        Severity::Error => ("error", Ink::Bad),
        Severity::Warning => ("warning", Ink::Change),
    };
    let lead = format!("{}: ", style.paint(ink, &format!("{word}[{}]", diagnostic.id)));
    let mut out = style.beside(&lead, &clean(&diagnostic.message));
    let margin = diagnostic.line.map_or(1, |line| line.to_string().len());
    let gutter = " ".repeat(margin);
    if let (Some(file), Some(line), Some(column)) = (&diagnostic.file, diagnostic.line, diagnostic.column) {
        out.push_str(&format!("{gutter}--> {file}:{line}:{column}\n"));
        if let Some(source) = source_line(tree, file, line).map(|source| masked(&source, file, line, all)) {
            let end = diagnostic.end_column.filter(|_| diagnostic.end_line == Some(line));
            let (shown, mark) = marked(&source, column, end);
            out.push_str(&format!("{gutter} |\n{line} | {shown}\n{gutter} | {}\n", style.paint(ink, &mark)));
        }
    }
    for related in &diagnostic.related {
        let place = format!("{gutter} = {}:{}:{}: ", related.file, related.line, related.column);
        out.push_str(&style.beside(&place, &clean(&related.message)));
    }
    if let Some(hint) = &diagnostic.hint {
        out.push_str(&style.beside(&format!("{gutter} = hint: "), &clean(hint)));
    }
    out
}

fn source_line(tree: &Tree, file: &str, line: usize) -> Option<String> {
    let TreeEntry::File(bytes) = tree.get(file)? else { return None };
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    text.split('\n').nth(line.checked_sub(1)?).map(|line| line.trim_end_matches('\r').to_owned())
}

/// A key that somebody wrote into a file must not be repeated into a terminal or a CI log, whichever finding shows
/// its line.
fn masked(source: &str, file: &str, line: usize, all: &[Diagnostic]) -> String {
    let here = |d: &&Diagnostic| d.id == ids::LITERAL_SECRET && d.file.as_deref() == Some(file) && d.line == Some(line);
    let mut chars: Vec<char> = source.chars().collect();
    for secret in all.iter().filter(here) {
        let start = secret.column.unwrap_or(1).saturating_sub(1).min(chars.len());
        let end = secret.end_column.filter(|_| secret.end_line == Some(line)).map_or(chars.len(), |end| end - 1);
        chars[start..end.clamp(start, source.chars().count())].fill('*');
    }
    chars.into_iter().collect()
}

/// The line as shown and the mark below it. Columns count characters; a mark that goes beyond the line ends with it.
fn marked(source: &str, column: usize, end_column: Option<usize>) -> (String, String) {
    let chars: Vec<char> = source.chars().collect();
    let start = column.saturating_sub(1).min(chars.len());
    let end = end_column.map_or(chars.len(), |end| end.saturating_sub(1)).clamp(start, chars.len().max(start));
    let from = if chars.len() > SOURCE_WIDTH { start.saturating_sub(40) } else { 0 };
    let to = chars.len().min(from + SOURCE_WIDTH);
    let shown: String = chars[from..to].iter().map(|c| if c.is_control() && *c != '\t' { '?' } else { *c }).collect();
    // Tabs stay tabs, so that the mark stands where the terminal puts the text.
    let before: String = chars[from..start].iter().map(|c| if *c == '\t' { '\t' } else { ' ' }).collect();
    let mark = "^".repeat(end.min(to).saturating_sub(start).max(1));
    (shown, format!("{before}{mark}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::at;

    #[test]
    fn the_mark_stands_under_the_text_behind_tabs_and_wide_letters() {
        assert_eq!(marked("\tké \"vlm\" x", 5, Some(10)), ("\tké \"vlm\" x".into(), "\t   ^^^^^".into()));
        assert_eq!(marked("x", 9, None).1, " ^");
        assert_eq!(marked("a\x1b[31m", 1, Some(2)).0, "a?[31m");
        let long = "x".repeat(500);
        let (shown, mark) = marked(&long, 300, Some(305));
        assert_eq!((shown.len(), mark.trim_start().len(), mark.find('^')), (SOURCE_WIDTH, 5, Some(40)));
    }

    #[test]
    fn a_finding_shows_its_line_its_hint_and_the_other_place() {
        let tree = Tree::from_iter([("cluster.kdl", "cluster \"lab\"\n    engine \"vlm\"\n")]);
        let place = crate::base::Place { column: 12, end_column: 17, ..at("cluster.kdl", 2) };
        let found = Diagnostic::error("FLK120", &place, "unknown engine `vlm`")
            .hint("did you mean `vllm`?")
            .related(&at("cluster.kdl", 1), "the cluster");
        let expected = "error[FLK120]: unknown engine `vlm`\n --> cluster.kdl:2:12\n  |\n2 |     engine \"vlm\"\n  |            ^^^^^\n  = cluster.kdl:1:5: the cluster\n  = hint: did you mean `vllm`?\n\ninvalid: 1 error\n";
        assert_eq!(diagnostics_text(&[found], &tree, &Style::PLAIN), expected);
    }

    #[test]
    fn the_json_of_validate_begins_with_its_format() {
        let text = serde_json::to_string(&Validation::of(&[])).unwrap();
        assert_eq!(text, r#"{"format":1,"valid":true,"error_count":0,"warning_count":0,"diagnostics":[]}"#);
    }
}
