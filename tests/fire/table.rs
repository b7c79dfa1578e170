//! Tables of cases: printed, and appended to the file that `FLOCK_FIRE_REPORT` names.

use std::io::Write as _;
use std::time::{Duration, Instant};

/// Whether the cases that take minutes are wanted too.
pub fn long() -> bool {
    std::env::var_os("FLOCK_FIRE_LONG").is_some()
}

/// One table; says what broke only when all of its cases have run.
pub struct Table {
    title: &'static str,
    begun: Instant,
    rows: Vec<Row>,
}

struct Row {
    case: String,
    broken: Vec<String>,
    recovery: Option<Duration>,
}

impl Table {
    /// An empty one.
    pub fn new(title: &'static str) -> Self {
        Self { title, begun: Instant::now(), rows: Vec::new() }
    }

    /// Adds a case: what was broken, and how long the way back took, where there was one.
    pub fn row(&mut self, case: impl Into<String>, broken: Vec<String>, recovery: Option<Duration>) {
        let case = case.into();
        let state = if broken.is_empty() { "holds".to_owned() } else { format!("BROKEN: {}", broken.join("; ")) };
        eprintln!("fire: {case}: {state}, {}", seconds(recovery));
        self.rows.push(Row { case, broken, recovery });
    }

    /// Prints it, and fails the test where anything was broken.
    #[track_caller]
    pub fn finish(self) {
        let mut text = format!("\n## {}\n\n| case | broken invariants | recovery |\n| --- | --- | --- |\n", self.title);
        for row in &self.rows {
            let broken = if row.broken.is_empty() { "none".to_owned() } else { row.broken.join("; ") };
            text.push_str(&format!("| {} | {broken} | {} |\n", row.case, seconds(row.recovery)));
        }
        let broken = self.rows.iter().filter(|row| !row.broken.is_empty()).count();
        let slowest = self.rows.iter().filter_map(|row| row.recovery).max();
        let count = self.rows.len();
        text.push_str(&format!(
            "\n{count} cases in {:.0} s, {broken} broken, slowest recovery {}\n",
            self.begun.elapsed().as_secs_f64(),
            seconds(slowest)
        ));
        eprintln!("{text}");
        if let Some(path) = std::env::var_os("FLOCK_FIRE_REPORT") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the report can be written");
        }
        assert_eq!(broken, 0, "{broken} cases broke something\n{text}");
    }
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}
