//! An apply as it happens: bars on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::plan::{Event, Plan};
use crate::report::{self, Style};

use super::printer::Printer;

/// Time between two plain lines about the same copy.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Consumes the events of one apply.
pub struct Progress {
    printer: Printer,
    plan: Plan,
    bars: Option<MultiProgress>,
    open: BTreeMap<u32, ProgressBar>,
    last_line: BTreeMap<u32, Instant>,
}

impl Progress {
    /// Bars where standard error is a terminal.
    pub fn new(printer: Printer, plan: &Plan) -> Self {
        let bars = printer.animates().then(MultiProgress::new);
        Self { printer, plan: plan.clone(), bars, open: BTreeMap::new(), last_line: BTreeMap::new() }
    }

    /// Shows events until the apply is over.
    pub async fn show(mut self, mut events: UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            match &self.bars {
                Some(_) => self.animate(&event),
                None => self.line(&event),
            }
        }
    }

    fn line(&mut self, event: &Event) {
        // What is told in words is always told; figures come often.
        if let Event::StepProgress { step, done_bytes: Some(_), .. } = event {
            let last = self.last_line.entry(*step).or_insert_with(Instant::now);
            if last.elapsed() < LINE_EVERY {
                return;
            }
            *last = Instant::now();
        }
        if let Some(text) = report::event_line(event, &Style::PLAIN) {
            self.printer.note(&text);
        }
    }

    fn animate(&mut self, event: &Event) {
        let Some(bars) = &self.bars else { return };
        match event {
            Event::StepStarted { step, .. } => {
                let total = self
                    .plan
                    .steps
                    .iter()
                    .find(|planned| planned.id == *step)
                    .map_or(0, |planned| planned.download_bytes);
                let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
                bar.set_style(style(total > 0));
                bar.set_message(report::event_line(event, &Style::PLAIN).unwrap_or_default());
                bar.enable_steady_tick(Duration::from_millis(120));
                self.open.insert(*step, bars.add(bar));
            }
            Event::StepProgress { step, done_bytes: Some(done), .. } => {
                if let Some(bar) = self.open.get(step) {
                    bar.set_position(*done);
                }
            }
            other => {
                if let Some(bar) = other.step().and_then(|step| self.open.remove(&step)) {
                    bar.finish_and_clear();
                }
                if let Some(text) = report::event_line(other, &Style::PLAIN) {
                    // A terminal that went away is no reason to stop an apply.
                    let _ = bars.println(text);
                }
            }
        }
    }
}

fn style(bytes: bool) -> ProgressStyle {
    let template = if bytes {
        "{spinner} {msg}  {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left"
    } else {
        "{spinner} {msg}  {elapsed}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
