//! The best variant for each piece of hardware, and why not the next better one, for people.

use super::style::{Ink, Style, clean, pad};
use crate::sizing::{Best, said};

/// One line per accelerator request: what to take there, or that nothing of it fits.
pub(super) fn best_text(best: &[Best], style: &Style) -> String {
    if best.is_empty() {
        return String::new();
    }
    let width = best.iter().map(|best| best.accelerator.chars().count()).max().unwrap_or(0);
    let mut out = format!("\n{}", style.heading("Best on each"));
    for entry in best {
        let why = entry.better.as_ref().zip(entry.reason.as_ref());
        let why = why.map(|(variant, reason)| said(variant, reason));
        let (ink, text) = match (&entry.variant, why) {
            (Some(variant), Some(why)) => (Ink::Good, format!("{variant}; {why}")),
            (Some(variant), None) => (Ink::Good, variant.clone()),
            (None, Some(why)) => (Ink::Bad, format!("nothing fits; {why}")),
            (None, None) => (Ink::Bad, "nothing of it can be run there".to_owned()),
        };
        let lead = format!("  {}  ", style.paint(ink, &pad(&entry.accelerator, width)));
        out.push_str(&style.beside(&lead, &clean(&text)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_accelerator_has_a_line_with_the_next_better_variant() {
        let entry = |on: &str, variant: Option<&str>, better: Option<(&str, &str)>| Best {
            accelerator: on.into(),
            variant: variant.map(str::to_owned),
            better: better.map(|(name, _)| name.to_owned()),
            reason: better.map(|(_, reason)| reason.to_owned()),
        };
        let best = [
            entry("24GiB", None, Some(("awq-int4", "needs 37.0 GiB for its weights, 1 x 22.1 usable"))),
            entry("2x24GiB", Some("awq-int4"), Some(("fp8", "fp8 needs compute capability 8.0"))),
            entry("2x80GiB", Some("bf16"), None),
        ];
        let text = best_text(&best, &Style::PLAIN);
        assert_eq!(
            text,
            "\nBest on each\n  24GiB    nothing fits; awq-int4 needs 37.0 GiB for its weights, 1 x 22.1 usable\n  \
             2x24GiB  awq-int4; fp8 needs compute capability 8.0\n  2x80GiB  bf16\n"
        );
    }
}
