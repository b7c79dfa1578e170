//! What a model needs, for people. The JSON is the report itself.

use super::size_fits;
use super::style::{Ink, Style, table};
use super::words::bytes_of;
use crate::base::format_bytes;
use crate::sizing::SizeAnswer;

/// The size report as text; with `explain`, where each figure is from.
pub fn size_text(answer: &SizeAnswer, explain: bool, style: &Style) -> String {
    let report = &answer.report;
    let billions = report.parameters as f64 / 1e9;
    let lead = format!("{}  ", style.paint(Ink::Heading, &report.source));
    let facts = format!("{}, {billions:.2} billion parameters, {} attention", report.architecture, report.attention);
    let mut out = style.beside(&lead, &facts);
    let replicated = if report.kv.replicated_over_tp { ", held whole by every rank" } else { "" };
    // Layers with a window keep no more than that: the product with the context is not what is needed.
    let windows = if report.attention == "sliding" { " while it is in every window" } else { "" };
    out.push_str(&style.beside(
        "  KV cache  ",
        &format!(
            "{} bytes per token{windows}, {} in all{replicated}",
            report.kv.bytes_per_token,
            format_bytes(report.kv.total_bytes)
        ),
    ));
    let legal: Vec<String> = report.splits.tensor_parallel.iter().map(u32::to_string).collect();
    out.push_str(&style.beside("  Splits    ", &format!("tensor parallel {}", legal.join(", "))));
    for refused in &report.splits.refused {
        out.push_str(&style.beside(&format!("            {} refused: ", refused.tp), &refused.text));
    }
    let rows: Vec<Vec<String>> = report
        .per_accelerator
        .iter()
        .enumerate()
        .map(|(index, each)| {
            let figures = [each.weights_bytes, each.kv_bytes, each.overhead_bytes, each.total_bytes];
            std::iter::once(index.to_string()).chain(figures.iter().map(|bytes| format_bytes(*bytes))).collect()
        })
        .collect();
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&table(&["ACCELERATOR", "WEIGHTS", "KV", "OTHER", "TOTAL"], &rows));
    }
    let rows: Vec<Vec<String>> = report
        .variants
        .iter()
        .map(|variant| {
            vec![
                variant.id.clone(),
                format_bytes(variant.weights_bytes),
                format_bytes(variant.download_bytes),
                format!("{:.2}", variant.bits_per_weight),
            ]
        })
        .collect();
    out.push('\n');
    out.push_str(&table(&["VARIANT", "WEIGHTS", "DOWNLOAD", "BITS PER WEIGHT"], &rows));
    let rows: Vec<Vec<String>> = report
        .fits
        .iter()
        .map(|fit| {
            let word = if fit.fits { "fits" } else { "does not fit" };
            let stages =
                if fit.pipeline_parallel > 1 { format!(", pp {}", fit.pipeline_parallel) } else { String::new() };
            let split = format!("tp {}{stages}", fit.tensor_parallel);
            vec![
                fit.accelerator.clone(),
                fit.variant.clone(),
                split,
                word.to_owned(),
                bytes_of(fit.needed_bytes, fit.available_bytes),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&table(&["ON", "VARIANT", "SPLIT", "", "NEEDS"], &rows));
    }
    out.push_str(&size_fits::best_text(&report.best, style));
    for advice in &answer.advice {
        out.push_str(&style.beside("hint: ", advice));
    }
    if explain {
        out.push('\n');
        out.push_str(&style.heading("Where the figures are from"));
        for line in &answer.explain {
            out.push_str(&style.beside("  ", line));
        }
    }
    out
}
