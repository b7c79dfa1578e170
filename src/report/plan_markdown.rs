//! A plan as one comment of a pull request: a hidden marker to find it again, what hurts first and never folded,
//! the rest folded, and an own cut below the host's limit that says what was cut.

use std::collections::BTreeMap;

use super::plan_tail::{self, Group};
use super::plan_text::{self, PlanView};
use super::words::{self, count, short_digest};
use crate::base::is_invisible;
use crate::plan::{Plan, PlannedInstance, Step, Verb};

/// GitHub takes 65,536 characters in a comment; the rest is for what others may put around it. Counted in bytes,
/// which are never fewer.
pub const MARKDOWN_LIMIT: usize = 60_000;
/// Longest text of one cell; one long reason must not push out all others.
const CELL: usize = 600;
/// Names of one verb, where all names together would leave too little for anything else.
const NAMES: usize = 8_000;

/// A plan as markdown, at most [`MARKDOWN_LIMIT`] bytes. Everything that a config can say is escaped: no markup, no
/// mention, no reference, no link.
pub fn plan_markdown(plan: &Plan, view: &PlanView<'_>) -> String {
    let mut out = head(plan, view);
    out.push_str(&groups(plan));
    out.push_str(&missing(plan));
    let next = next(plan, view);
    let room = MARKDOWN_LIMIT.saturating_sub(out.len() + next.len() + 400);
    let (folded, cut) = fold(&sections(plan, view), room);
    out.push_str(&folded);
    if !cut.is_empty() {
        let whole = match view.saved_to {
            Some(file) => format!("`flock show --full` of the saved {} has everything", code(file)),
            None => "`flock plan --full` shows everything".to_owned(),
        };
        out.push_str(&format!("\n**Cut at {MARKDOWN_LIMIT} characters:** {} not shown; {whole}.\n", cut.join(", ")));
    }
    out.push_str(&next);
    out
}

/// The line by which a workflow finds its comment again.
pub fn marker(cluster: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    format!("<!-- flock plan {} -->", cluster.chars().map(plain).collect::<String>())
}

fn head(plan: &Plan, view: &PlanView<'_>) -> String {
    let short = |commit: &String| format!("commit {}", code(commit.get(..10).unwrap_or(commit)));
    let commit = plan.commit.as_ref().map_or("no commit".to_owned(), short);
    let dirty = if plan.dirty { " + changes not committed" } else { "" };
    let nodes = plan_text::known_nodes(plan, view);
    format!(
        "{}\n### Plan for cluster {}\n\n{commit}{dirty}, config `{}`, facts `{}`{nodes}\n\n",
        marker(&plan.cluster),
        code(&plan.cluster),
        short_digest(&plan.config_digest),
        short_digest(&plan.inventory_digest),
    )
}

/// Names by verb. A comment is read from its top, so what hurts is there.
fn groups(plan: &Plan) -> String {
    let mut groups = plan_tail::groups(plan);
    groups.reverse();
    let wide: usize = groups.iter().flat_map(|group| group.names.keys()).map(|name| name.len() + 8).sum();
    let room = if wide > MARKDOWN_LIMIT / 2 { NAMES / 2 } else { usize::MAX };
    if groups.is_empty() {
        return format!("**Nothing to do**, {} unchanged.\n", plan.summary.unchanged);
    }
    let mut out = String::from("| | count | models |\n| --- | ---: | --- |\n");
    for group in &groups {
        let word = if group.hurts { format!("**{}**", group.word) } else { group.word.to_owned() };
        let note = if group.note.is_empty() { String::new() } else { format!(" ({})", group.note) };
        out.push_str(&format!("| {word} | {} | {}{note} |\n", group.count, names(group, room)));
    }
    if plan.summary.unchanged > 0 {
        out.push_str(&format!("| unchanged | {} | |\n", plan.summary.unchanged));
    }
    out
}

/// Names of a group, as many as there is room for; what is left out is counted.
fn names(group: &Group<'_>, room: usize) -> String {
    let mut out = String::new();
    for (number, (name, times)) in group.names.iter().enumerate() {
        let word = if *times == 1 { cell_code(name) } else { format!("{} ({times})", cell_code(name)) };
        if out.len() + word.len() > room {
            out.push_str(&format!(" and **{} more**", group.names.len() - number));
            return out;
        }
        if number > 0 {
            out.push_str(", ");
        }
        out.push_str(&word);
    }
    out
}

/// What has no place and what is refused, with the way out: visible without a click.
fn missing(plan: &Plan) -> String {
    let mut lines: Vec<String> = Vec::new();
    for unplaced in &plan.unplaced {
        let word = if unplaced.required { "fewer than the minimum" } else { "it has its minimum" };
        let what = match super::egress::is_way_out(unplaced) {
            true => "no egress node for the way to its provider".to_owned(),
            false => format!("{} missing, {word}", count(unplaced.replicas as usize, "replica")),
        };
        lines.push(format!(
            "- **NOT PLACED** {}: {what}. {}\n",
            code(&unplaced.model),
            clip(&escape(&plan_text::nearest(unplaced)))
        ));
    }
    for blocked in &plan.blocked {
        let who = if blocked.model == "*" { "everything".to_owned() } else { code(&blocked.model) };
        let since = blocked.since.as_ref().map(|at| format!(" since {}", escape(at))).unwrap_or_default();
        let steps = plan_text::waiting(plan, blocked);
        let steps = if steps.is_empty() { steps } else { format!("{}; ", escape(&steps)) };
        let text =
            format!("- **blocked** {who}: {}{since}: {steps}{}\n", escape(&blocked.policy), escape(&blocked.remedy));
        lines.push(format!("{}\n", clip(text.trim_end())));
    }
    if lines.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n");
    let shown = lines.len();
    for (number, line) in lines.iter().enumerate() {
        if out.len() + line.len() > MARKDOWN_LIMIT / 4 {
            out.push_str(&format!("- and **{} more**, named in the table above\n", shown - number));
            break;
        }
        out.push_str(line);
    }
    out
}

/// A folded part: its title, what its rows are called, the head of its table and the rows.
struct Section {
    title: String,
    unit: &'static str,
    head: &'static str,
    rows: Vec<String>,
}

fn sections(plan: &Plan, view: &PlanView<'_>) -> Vec<Section> {
    let instances: BTreeMap<(&str, &str), &PlannedInstance> =
        plan.instances.iter().map(|i| ((i.instance.as_str(), i.node.as_str()), i)).collect();
    let steps = plan.steps.iter().map(|step| {
        let found = instances.get(&(step.instance.as_deref().unwrap_or_default(), step.node.as_str())).copied();
        row(step, found, view)
    });
    let reasons = plan.unplaced.iter().flat_map(|unplaced| {
        unplaced.reasons.iter().map(|reason| {
            let node = if reason.node == "*" { "anywhere".to_owned() } else { cell_code(&reason.at()) };
            cells(&[cell_code(&unplaced.model), node, cell(&reason.constraint), cell(&reason.text)])
        })
    });
    let since = |since: &Option<String>| since.as_ref().map(|at| format!(" (since {at})")).unwrap_or_default();
    let drift = plan.drift.iter().map(|d| (&d.node, &d.kind, &d.text, &d.since));
    let decay = plan.decay.iter().map(|d| (&d.node, &d.kind, &d.text, &d.since));
    let world = drift
        .chain(decay)
        .map(|(node, kind, text, at)| cells(&[cell_code(node), cell(kind), cell(&format!("{text}{}", since(at)))]));
    let deferred = plan.deferred.iter().map(|d| {
        cells(&[cell(&plan_text::put_off(d)), cell_code(&d.node), cell(plan_text::deferred_because(&d.reason))])
    });
    let warnings = plan.warnings.iter().map(|warning| {
        let at = match (&warning.file, warning.line) {
            (Some(file), Some(line)) => format!("{file}:{line} "),
            _ => String::new(),
        };
        let hint = warning.hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
        cells(&[cell(&warning.id), cell(&format!("{at}{}{hint}", warning.message))])
    });
    let ways = super::egress::ways(plan);
    let ways = ways.iter().map(|way| {
        let agents: Vec<String> = way.agents.iter().map(|agent| cell_code(agent)).collect();
        let (model, node) = (cell_code(&way.egress.provider_model), cell_code(&way.egress.node));
        let why = format!("{}; {}", super::egress::figures(way.egress), way.egress.because);
        cells(&[model, agents.join(", "), node, cell(&why)])
    });
    let mut found = Vec::new();
    let mut add = |title: &str, unit: &'static str, head: &'static str, rows: Vec<String>| {
        if !rows.is_empty() {
            found.push(Section { title: format!("{title} ({})", rows.len()), unit, head, rows });
        }
    };
    add(
        "Why not placed",
        "reasons",
        "| model | node | constraint | why |\n| --- | --- | --- | --- |\n",
        reasons.collect(),
    );
    add(
        "Changes",
        "steps",
        "| # | step | model | where | cost | because |\n| ---: | --- | --- | --- | --- | --- |\n",
        steps.collect(),
    );
    add("Ways out", "ways out", "| model | agents | via | why |\n| --- | --- | --- | --- |\n", ways.collect());
    add("Drift and decay", "findings", "| node | kind | what |\n| --- | --- | --- |\n", world.collect());
    add("Deferred", "deferred steps", "| model | node | why |\n| --- | --- | --- |\n", deferred.collect());
    add("Warnings", "warnings", "| id | what |\n| --- | --- |\n", warnings.collect());
    found
}

fn row(step: &Step, instance: Option<&PlannedInstance>, view: &PlanView<'_>) -> String {
    let (symbol, word) = words::verb(step.verb);
    let hurts = matches!(step.verb, Verb::Stop | Verb::Move | Verb::Restart | Verb::Change);
    let verb =
        if hurts { format!("**{}** {word}", cell_code(symbol)) } else { format!("{} {word}", cell_code(symbol)) };
    let mut place = cell(&plan_text::place(step, instance, view));
    if let Some(instance) = instance.filter(|_| !matches!(step.verb, Verb::Stop | Verb::Adopt)) {
        let shape = format!("{}; memory {}", plan_text::shape(instance), plan_text::memory(instance));
        place = format!("{place}<br>{}", cell(&shape));
        if let Some(chosen) = plan_text::choice(step, instance) {
            place = format!("{place}<br>{}", cell(&chosen));
        }
    }
    let reason = format!("{}: {}", words::because(step.because), step.detail);
    cells(&[
        step.id.to_string(),
        verb,
        cell_code(&plan_text::title(step)),
        place,
        cell(&plan_text::cost(step).join("; ")),
        cell(&reason),
    ])
}

/// Sections as long as they fit, and what did not.
fn fold(sections: &[Section], room: usize) -> (String, Vec<String>) {
    let (mut out, mut cut) = (String::new(), Vec::new());
    for section in sections {
        let begin = format!("\n<details><summary>{}</summary>\n\n{}", section.title, section.head);
        let end = "\n</details>\n";
        let mut body = String::new();
        let mut shown = 0;
        for row in &section.rows {
            if out.len() + begin.len() + body.len() + row.len() + end.len() > room {
                break;
            }
            body.push_str(row);
            shown += 1;
        }
        if shown > 0 {
            out.push_str(&format!("{begin}{body}{end}"));
        }
        if shown < section.rows.len() {
            cut.push(format!("{} of {} {}", section.rows.len() - shown, section.rows.len(), section.unit));
        }
    }
    (out, cut)
}

fn next(plan: &Plan, view: &PlanView<'_>) -> String {
    let lines = plan_tail::outlook(plan, view);
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = lines.iter().map(|line| clip(&escape(line))).collect();
    format!("\n{}\n", lines.join("<br>\n"))
}

fn cells(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// A text inside a table's cell.
fn cell(text: &str) -> String {
    clip(&escape(text))
}

/// A text that was escaped, cut where it is too long; never inside an escape.
fn clip(text: &str) -> String {
    if text.len() <= CELL {
        return text.to_owned();
    }
    let mut end = CELL;
    while !text.is_char_boundary(end) || text[..end].ends_with(['\\', '&']) || open_entity(&text[..end]) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

fn open_entity(text: &str) -> bool {
    text.rfind('&').is_some_and(|at| text.len() - at < 8 && !text[at..].contains(';'))
}

/// Text as markdown that shows exactly this text: no markup, no HTML, no mention of people, no reference to issues,
/// no link.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for (at, c) in text.char_indices() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // A character of no width: hosts neither notify the person nor link the issue or the address.
            '@' | '#' => {
                out.push('\\');
                out.push(c);
                out.push_str("&#8203;");
            }
            ':' if text[at..].starts_with("://") => out.push_str("&#58;&#8203;"),
            '.' if text[..at].ends_with("www") => out.push_str("&#8203;."),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '!' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c if is_invisible(c) => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// A name as a code span, whatever it holds.
fn code(text: &str) -> String {
    let text: String = text.chars().map(|c| if is_invisible(c) { '?' } else { c }).collect();
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if longest > 0 || text.trim() != text || text.is_empty() { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// The same inside a table, where even a code span is cut at a bare `|`.
fn cell_code(text: &str) -> String {
    code(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_a_config_becomes_markup() {
        let evil =
            "a|b `c` <img src=x onerror=1> @octo/team #12 **x** [y](https://e.example) \\| &lt; $z$\n- www.e.example";
        let text = escape(evil);
        for markup in ["<img", "`c`", "**", "](", "://", " @octo", "#12", "\n", " |", "www.e"] {
            let bare = text.match_indices(markup).any(|(at, _)| at == 0 || !text[..at].ends_with('\\'));
            assert!(!bare, "{markup:?} in {text}");
        }
        assert_eq!(
            escape("config: cluster.kdl:22 context 16384 -> 32768"),
            "config: cluster.kdl:22 context 16384 -&gt; 32768"
        );
        assert_eq!(cell_code("a`|b"), "`` a`\\|b ``");
        assert_eq!(code("coder"), "`coder`");
        assert_eq!(marker("lab --><script>"), "<!-- flock plan lab-----script- -->");
        // A cut never leaves half an escape behind.
        for length in CELL - 9..CELL + 2 {
            let text = format!("{}@&<x", "a".repeat(length));
            let clipped = clip(&escape(&text));
            assert!(
                !clipped.trim_end_matches('…').ends_with(['\\', '&']) && !open_entity(clipped.trim_end_matches('…'))
            );
        }
    }
}
