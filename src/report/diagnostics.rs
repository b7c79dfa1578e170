//! Findings about a config repository: with the source line and a mark under it, or as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan_text::unplaced_text;
use super::style::{Ink, Style, clean};
use super::words::count;
use crate::base::{Diagnostic, Severity, Tree, TreeEntry, is_obeyed};
use crate::config::ids;
use crate::placement::Unplaced;

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
    /// Whether it fits the inventory; left out without one, and where the config is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
}

/// Whether the models fit the hardware of an inventory.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// Whether every model reaches its minimum.
    pub fits: bool,
    /// Instances that found a place.
    pub placed: usize,
    /// Models with fewer replicas than they ask for, as in a plan.
    pub unplaced: Vec<Unplaced>,
    /// Nodes of the config that the inventory lacks, or could not reach.
    pub unreachable: Vec<String>,
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
            fit: None,
        }
    }
}

/// All findings with their source lines, and a closing line. `tree` is where the lines come from.
pub fn diagnostics_text(diagnostics: &[Diagnostic], tree: &Tree, style: &Style) -> String {
    validation_text(&Validation::of(diagnostics), tree, style)
}

/// As [`diagnostics_text`], with what else was asked: warnings may be denied, an inventory may be too small.
pub fn validation_text(answer: &Validation<'_>, tree: &Tree, style: &Style) -> String {
    let mut sources = Sources::of(answer.diagnostics, tree);
    let mut out = String::new();
    for diagnostic in answer.diagnostics {
        out.push_str(&one(diagnostic, &mut sources, style));
        out.push('\n');
    }
    let (errors, warnings) = (count(answer.error_count, "error"), count(answer.warning_count, "warning"));
    match (answer.error_count, answer.warning_count) {
        (0, 0) if !answer.valid => {
            out.push_str(&format!("{}: what is wrong is in other files", style.paint(Ink::Bad, "invalid")));
        }
        (0, 0) => out.push_str(&style.paint(Ink::Good, "valid")),
        (0, _) if !answer.valid => {
            out.push_str(&format!("{}: {warnings}, and warnings are denied", style.paint(Ink::Bad, "invalid")));
        }
        (0, _) => out.push_str(&format!("{}, {warnings}", style.paint(Ink::Good, "valid"))),
        (_, 0) => out.push_str(&format!("{}: {errors}", style.paint(Ink::Bad, "invalid"))),
        _ => out.push_str(&format!("{}: {errors}, {warnings}", style.paint(Ink::Bad, "invalid"))),
    }
    out.push('\n');
    if let Some(fit) = &answer.fit {
        out.push_str(&fit_text(fit, style));
    }
    out
}

fn fit_text(fit: &Fit, style: &Style) -> String {
    let mut out = if fit.fits {
        format!("{}: {} placed\n", style.paint(Ink::Good, "fits"), count(fit.placed, "instance"))
    } else {
        format!("{}: {} placed\n", style.paint(Ink::Bad, "does not fit"), count(fit.placed, "instance"))
    };
    out.push_str(&unplaced_text(&fit.unplaced, style));
    if !fit.unreachable.is_empty() {
        let names = fit.unreachable.join(", ");
        out.push_str(&style.beside("  not in the inventory, or unreachable: ", &clean(&names)));
    }
    out
}

/// Findings with their source lines, one after another, and nothing else. `tree` is where the lines come from.
pub fn findings_text(diagnostics: &[Diagnostic], tree: &Tree, style: &Style) -> String {
    let mut sources = Sources::of(diagnostics, tree);
    diagnostics.iter().map(|diagnostic| one(diagnostic, &mut sources, style)).collect()
}

fn one(diagnostic: &Diagnostic, sources: &mut Sources<'_>, style: &Style) -> String {
    let (word, ink) = match diagnostic.severity {
        Severity::Error => ("error", Ink::Bad),
        Severity::Warning => ("warning", Ink::Change),
    };
    let lead = format!("{}: ", style.paint(ink, &format!("{word}[{}]", diagnostic.id)));
    let mut out = style.beside(&lead, &clean(&diagnostic.message));
    let margin = diagnostic.line.map_or(1, |line| line.to_string().len());
    let gutter = " ".repeat(margin);
    if let (Some(file), Some(line), Some(column)) = (&diagnostic.file, diagnostic.line, diagnostic.column) {
        out.push_str(&format!("{gutter}--> {}:{line}:{column}\n", clean(file)));
        if let Some(source) = sources.line(file, line) {
            let end = diagnostic.end_column.filter(|_| diagnostic.end_line == Some(line));
            let (shown, mark) = marked(&source, column, end);
            out.push_str(&format!("{gutter} |\n{line} | {shown}\n{gutter} | {}\n", style.paint(ink, &mark)));
        }
    }
    for related in &diagnostic.related {
        let place = format!("{gutter} = {}:{}:{}: ", clean(&related.file), related.line, related.column);
        out.push_str(&style.beside(&place, &clean(&related.message)));
    }
    if let Some(hint) = &diagnostic.hint {
        out.push_str(&style.beside(&format!("{gutter} = hint: "), &clean(hint)));
    }
    out
}

/// From a column to the one just past the end; `None` is the rest of the line.
type Columns = (usize, Option<usize>);

/// The lines of the files that findings are about, each file cut once.
struct Sources<'t> {
    tree: &'t Tree,
    lines: BTreeMap<String, Vec<String>>,
    /// By file and line, the columns of keys that somebody wrote into it.
    secrets: BTreeMap<(&'t str, usize), Vec<Columns>>,
}

impl<'t> Sources<'t> {
    fn of(all: &'t [Diagnostic], tree: &'t Tree) -> Self {
        let mut secrets: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for secret in all.iter().filter(|one| one.id == ids::LITERAL_SECRET) {
            if let (Some(file), Some(line)) = (secret.file.as_deref(), secret.line) {
                let end = secret.end_column.filter(|_| secret.end_line == Some(line));
                secrets.entry((file, line)).or_default().push((secret.column.unwrap_or(1), end));
            }
        }
        Self { tree, lines: BTreeMap::new(), secrets }
    }

    /// A line as it may be shown: a key that somebody wrote into a file must not be repeated into a terminal or a CI
    /// log, whichever finding shows its line.
    fn line(&mut self, file: &str, line: usize) -> Option<String> {
        if !self.lines.contains_key(file) {
            let TreeEntry::File(bytes) = self.tree.get(file)? else { return None };
            let text = String::from_utf8_lossy(bytes);
            let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
            let cut = text.split('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect();
            self.lines.insert(file.to_owned(), cut);
        }
        let source = self.lines.get(file)?.get(line.checked_sub(1)?)?;
        let Some(secrets) = self.secrets.get(&(file, line)) else { return Some(source.clone()) };
        let mut chars: Vec<char> = source.chars().collect();
        let all = chars.len();
        for (column, end) in secrets {
            let start = column.saturating_sub(1).min(all);
            let end = end.map_or(all, |end| end - 1);
            chars[start..end.clamp(start, all)].fill('*');
        }
        Some(chars.into_iter().collect())
    }
}

/// The line as shown and the mark below it. Columns count characters; a mark that goes beyond the line ends with it.
fn marked(source: &str, column: usize, end_column: Option<usize>) -> (String, String) {
    let chars: Vec<char> = source.chars().collect();
    let start = column.saturating_sub(1).min(chars.len());
    let end = end_column.map_or(chars.len(), |end| end.saturating_sub(1)).clamp(start, chars.len().max(start));
    let from = if chars.len() > SOURCE_WIDTH { start.saturating_sub(40) } else { 0 };
    let to = chars.len().min(from + SOURCE_WIDTH);
    let shown: String = chars[from..to].iter().map(|c| if is_obeyed(*c) || *c == '\n' { '?' } else { *c }).collect();
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
        assert_eq!(marked("a\x1b[31m\u{202e}", 1, Some(2)).0, "a?[31m?");
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
