//! `flock doctor`: what was looked at on each node, the worst last where eyes end up.

use serde::Serialize;

use super::style::{Ink, Style, clean, pad};
use crate::inventory::{Check, Health};

/// `flock doctor --format json`.
#[derive(Debug, Clone, Serialize)]
pub struct DoctorDocument {
    /// 1.
    pub format: u32,
    /// Checks that failed, on all nodes together.
    pub fail_count: usize,
    /// Checks with a warning.
    pub warn_count: usize,
    /// All nodes, by name.
    pub nodes: Vec<DoctorNode>,
}

/// One node.
#[derive(Debug, Clone, Serialize)]
pub struct DoctorNode {
    /// Its name.
    pub node: String,
    /// Whether its agent answered.
    pub reachable: bool,
    /// What was looked at; of a node that does not answer, why.
    pub checks: Vec<Check>,
}

impl DoctorDocument {
    /// What was found.
    pub fn of(nodes: Vec<DoctorNode>) -> Self {
        let count = |health| nodes.iter().flat_map(|node| &node.checks).filter(|check| check.health == health).count();
        Self { format: 1, fail_count: count(Health::Fail), warn_count: count(Health::Warn), nodes }
    }

    /// The worst of all checks.
    pub fn worst(&self) -> Option<Health> {
        self.nodes.iter().flat_map(|node| &node.checks).map(|check| check.health).max()
    }
}

/// Every check on a line, with its remedy below it where there is something to do.
pub fn doctor_text(document: &DoctorDocument, style: &Style) -> String {
    let mut out = String::new();
    for node in &document.nodes {
        out.push_str(&style.heading(&clean(&node.node)));
        let width = node.checks.iter().map(|check| check.id.chars().count()).max().unwrap_or(0);
        for check in &node.checks {
            let (word, ink) = match check.health {
                Health::Ok => ("ok", Ink::Good),
                Health::Warn => ("warn", Ink::Change),
                Health::Fail => ("FAIL", Ink::Bad),
            };
            let lead = format!("  {}  {}  ", style.paint(ink, &pad(word, 4)), pad(&clean(&check.id), width));
            out.push_str(&style.beside(&lead, &clean(&check.text)));
            if let Some(remedy) = &check.remedy {
                let lead = format!("{}-> ", " ".repeat(width + 10));
                out.push_str(&style.beside(&lead, &clean(remedy)));
            }
        }
    }
    let (fails, warnings) = (document.fail_count, document.warn_count);
    let nodes = super::count(document.nodes.len(), "node");
    out.push_str(&match (fails, warnings) {
        (0, 0) => format!("{nodes}: nothing to do\n"),
        _ => format!("{nodes}: {fails} failed, {}\n", super::count(warnings, "warning")),
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_remedy_stands_below_its_check_and_nothing_reaches_the_terminal_raw() {
        let checks = vec![
            Check::ok("clock", "fine"),
            Check::fail("home_disk", "/home\u{1b}[31m has 3 MiB free", "make room"),
            Check::warn("reboot", "lost", "linger"),
        ];
        let node = DoctorNode { node: "ada-1".into(), reachable: true, checks };
        let document = DoctorDocument::of(vec![node]);
        assert_eq!(document.worst(), Some(Health::Fail));
        let text = doctor_text(&document, &Style::PLAIN);
        let expected = "ada-1\n  ok    clock      fine\n  FAIL  home_disk  /home?[31m has 3 MiB free\n\
            \x20                  -> make room\n  warn  reboot     lost\n                   -> linger\n\
            1 node: 1 failed, 1 warning\n";
        assert_eq!(text, expected);
        let json = crate::report::json(&document);
        assert!(json.contains("\"health\": \"fail\"") && json.contains("\"fail_count\": 1"), "{json}");
    }
}
