//! Workflow commands of GitHub Actions: annotations on the lines of a pull request.
//!
//! GitHub shows ten errors and ten warnings per step and drops the rest without a word. So nine are annotations, the
//! tenth says how many more there are, and those are plain lines of the log.

use super::rules::{by_weight, hosted};
use crate::base::{Diagnostic, Severity};
use crate::report::style::clean;
use crate::report::words::count;

/// Annotations of one severity, besides the one that counts the rest.
const SHOWN: usize = 9;

/// The findings as workflow commands, errors first. `prefix` is the folder of the config repository in the checkout,
/// without a slash at its end; empty at its root.
pub fn github_annotations(diagnostics: &[Diagnostic], prefix: &str) -> String {
    let mut out = String::new();
    let mut further = String::new();
    let all = by_weight(diagnostics);
    for severity in [Severity::Error, Severity::Warning] {
        let of_kind: Vec<_> = all.iter().filter(|one| one.severity == severity).collect();
        // Ten fit: the tenth is a finding if it is the last.
        let shown = if of_kind.len() <= SHOWN + 1 { of_kind.len().min(SHOWN) } else { SHOWN };
        for one in &of_kind[..shown] {
            out.push_str(&annotation(one, prefix));
        }
        let rest = &of_kind[shown..];
        if rest.is_empty() {
            continue;
        }
        let more = count(rest.len(), &format!("more {}", word(severity)));
        let text = format!("{more}; the log of this step lists {}", if rest.len() == 1 { "it" } else { "them" });
        out.push_str(&format!("::{} title=flock::{}\n", word(severity), data(&text)));
        for one in rest {
            further.push_str(&plain(one, prefix));
        }
    }
    out + &further
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn annotation(one: &Diagnostic, prefix: &str) -> String {
    let mut properties = Vec::new();
    if let Some(file) = &one.file {
        properties.push(format!("file={}", property(&hosted(prefix, file))));
        let numbers = [("line", one.line), ("endLine", one.end_line)];
        properties.extend(numbers.iter().filter_map(|(name, at)| at.map(|at| format!("{name}={at}"))));
        // Columns are only taken where the finding lies on one line.
        if one.line == one.end_line {
            let numbers = [("col", one.column), ("endColumn", one.end_column)];
            properties.extend(numbers.iter().filter_map(|(name, at)| at.map(|at| format!("{name}={at}"))));
        }
    }
    properties.push(format!("title={}", property(&format!("flock {}", one.id))));
    let mut text = one.message.clone();
    if let Some(hint) = &one.hint {
        text.push_str(&format!("\nhint: {hint}"));
    }
    for related in &one.related {
        let file = hosted(prefix, &related.file);
        text.push_str(&format!("\n{file}:{}:{}: {}", related.line, related.column, related.message));
    }
    format!("::{} {}::{}\n", word(one.severity), properties.join(","), data(&clean(&text)))
}

/// A finding as a line of the log that GitHub does not take for a command: it begins with a word of ours.
fn plain(one: &Diagnostic, prefix: &str) -> String {
    let mut place = String::new();
    if let (Some(file), Some(line), Some(column)) = (&one.file, one.line, one.column) {
        place = format!(" {}:{line}:{column}", hosted(prefix, file));
    }
    let hint = one.hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
    let line = format!("{}[{}]{place}: {}{hint}", word(one.severity), one.id, one.message);
    format!("{}\n", clean(&line).replace('\n', " "))
}

/// The text of a command: a command ends with its line.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// The value of a property, which also ends at `,` and `:`.
fn property(text: &str) -> String {
    data(&clean(text)).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::at;

    #[test]
    fn what_would_end_a_command_is_escaped() {
        let found = Diagnostic::error("FLK103", &at("a,b:c%.kdl", 2), "50% of\nit\r").hint("x\u{1b}[31m");
        assert_eq!(
            github_annotations(&[found], "conf"),
            "::error file=conf/a%2Cb%3Ac%25.kdl,line=2,endLine=2,col=5,endColumn=20,title=flock FLK103::50%25 of%0Ait\\u{d}%0Ahint: x\\u{1b}[31m\n"
        );
        let mut long = Diagnostic::warning("FLK190", &at("x.kdl", 1), "m").related(&at("y.kdl", 4), "the other one");
        long.end_line = Some(3);
        assert_eq!(
            github_annotations(&[long], ""),
            "::warning file=x.kdl,line=1,endLine=3,title=flock FLK190::m%0Ay.kdl:4:5: the other one\n"
        );
        let general = Diagnostic::general("FLK107", Severity::Error, "there is no cluster.kdl");
        assert_eq!(github_annotations(&[general], ""), "::error title=flock FLK107::there is no cluster.kdl\n");
    }

    #[test]
    fn at_most_ten_of_each_kind_errors_first_and_the_rest_is_counted_and_listed() {
        let mut all: Vec<Diagnostic> =
            (1..=12).map(|line| Diagnostic::warning("FLK190", &at("a.kdl", line), "w")).collect();
        all.extend((1..=30).map(|line| Diagnostic::error("FLK110", &at("::error::b.kdl", line), "e\n::warning::x")));
        let text = github_annotations(&all, "");
        let commands: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("::")).collect();
        assert_eq!(commands.iter().filter(|line| line.starts_with("::error")).count(), 10, "{text}");
        assert_eq!(commands.iter().filter(|line| line.starts_with("::warning")).count(), 10, "{text}");
        assert!(commands[..10].iter().all(|line| line.starts_with("::error")), "{text}");
        assert!(commands[9].contains("21 more errors") && commands[19].contains("3 more warnings"), "{text}");
        assert_eq!(text.lines().count(), 20 + 21 + 3, "{text}");
        let nine: Vec<Diagnostic> = all[12..21].to_vec();
        assert_eq!(github_annotations(&nine, "").lines().count(), 9);
    }
}
