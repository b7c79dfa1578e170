//! Predicted against measured memory, row by row, as a table in markdown.
//!
//! `cargo bench --bench sizing` (add `--profile dev` for a build without optimisation). `-- write FOLDER MODEL
//! QUANTISATION [FIELD=VALUE…]` writes the headers of a row, with other dimensions if asked, as a GGUF file for the
//! engine itself to judge; `-- live SERVER FIT-PARAMS MODEL FOLDER` holds sizes against a real server's log
//! (`scripts/measure-sizing` runs both).
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

#[path = "accuracy/mod.rs"]
mod accuracy;
#[path = "../tests/support/headers.rs"]
mod headers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use accuracy::live::{self, NETWORKS, Setting};
use accuracy::{Outcome, Pair};
use flock::base::Dtype;
use flock::weights::Variant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.as_slice() {
        [word, folder, model, quantisation, fields @ ..] if word == "write" => {
            write(Path::new(folder), model, quantisation, fields)
        }
        [word, server, fit, real, folder] if word == "live" => live(server, fit, real, Path::new(folder)),
        _ => {
            report();
            ExitCode::SUCCESS
        }
    }
}

fn write(folder: &Path, model: &str, quantisation: &str, fields: &[String]) -> ExitCode {
    let row = headers::row(model).map(|row| {
        fields.iter().filter_map(|field| field.split_once('=')).fold(row, |row, (name, value)| row.with(name, value))
    });
    let stem = format!("{}-{quantisation}", model.rsplit('/').next().unwrap_or(model));
    let Some(files) = row.and_then(|row| headers::gguf(&row, quantisation, &stem, 1)) else {
        println!("no rule for {model} in {quantisation}");
        return ExitCode::FAILURE;
    };
    match headers::write(folder, &files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

/// The table of rows, medians and worst cases, and what is not predicted.
fn report() {
    let all = accuracy::outcomes();
    let percent = |pair: Option<Pair>| pair.map_or(String::new(), |pair| format!("{:+.2} %", pair.error()));
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / 1_048_576.0);
    let both = |pair: Option<Pair>| {
        pair.map_or(String::new(), |pair| format!("{} / {}", mib(pair.predicted), mib(pair.measured)))
    };
    println!("| row | engine | model | weights, MiB | | KV, MiB | | compute, MiB | | total, MiB | |");
    println!("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for row in &all {
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.id,
            row.engine,
            row.model,
            both(row.weights),
            percent(row.weights),
            both(row.kv),
            percent(row.kv),
            both(row.compute),
            percent(row.compute),
            both(row.total),
            percent(row.total),
        );
    }
    println!("\nPredicted / measured; a total is what flock would plan for the figures that were measured.\n");
    println!("| engine | figure | rows | median error | worst error |");
    println!("| --- | --- | ---: | ---: | ---: |");
    let mut engines: Vec<&str> = all.iter().map(|row| row.engine.as_str()).collect();
    engines.sort_unstable();
    engines.dedup();
    for engine in engines {
        for (figure, of) in [
            ("weights", (|row| row.weights) as fn(&Outcome) -> Option<Pair>),
            ("KV", |row| row.kv),
            ("compute", |row| row.compute),
        ] {
            let errors: Vec<f64> =
                all.iter().filter(|row| row.engine == engine).filter_map(of).map(Pair::error).collect();
            if let Some(worst) = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())) {
                let middle = median(errors.iter().map(|error| error.abs()).collect());
                println!("| {engine} | {figure} | {} | {middle:.2} % | {worst:+.2} % |", errors.len());
            }
        }
    }
    let totals: Vec<Pair> = all.iter().filter_map(|row| row.total).collect();
    let rules: Vec<(Pair, Pair)> = all.iter().filter_map(|row| Some((row.total?, row.rule?))).collect();
    let under = |pairs: &[Pair]| pairs.iter().filter(|pair| pair.predicted < pair.measured).count();
    let (ours, theirs): (Vec<Pair>, Vec<Pair>) = rules.into_iter().unzip();
    let middle = |pairs: &[Pair]| median(pairs.iter().map(|pair| pair.error().abs()).collect());
    println!("\nRows: {}, predicted (at least one figure): {}.", all.len(), totals.len());
    let whole = all.iter().filter(|row| row.whole).count();
    println!(
        "Totals below what was measured: {} of {} ({whole} of them with measured buffers, peaks or graphs; a row without \
         has only its weights and cache to be above of).",
        under(&totals),
        totals.len()
    );
    println!(
        "On the {} rows with weights: median error of the total {:.1} % and {} below; \
         of 1.2 x weights + 2 GiB {:.1} % and {} below.",
        ours.len(),
        middle(&ours),
        under(&ours),
        middle(&theirs),
        under(&theirs)
    );
    println!("\nNot predicted:\n");
    for row in &all {
        for (what, reason) in &row.reasons {
            println!("- {} {} ({what}): {reason}", row.id, row.model);
        }
    }
}

/// The live comparison: `live SERVER FIT-PARAMS|- MODEL FOLDER`.
fn live(server: &str, fit: &str, real: &str, folder: &Path) -> ExitCode {
    let settings: Vec<Setting> = [512, 2048, 8192]
        .into_iter()
        .flat_map(|context| [1, 4].map(|slots| (context, slots)))
        .flat_map(|(context, slots)| {
            let of = |kv, flash| Setting { context, slots, kv, flash };
            [of(None, true), of(Some(Dtype::Q8_0), true), of(None, false)]
        })
        .collect();
    let mut models: Vec<(&str, PathBuf, Variant)> = vec![("SmolLM2 135M", PathBuf::from(real), live::real_model(real))];
    for network in NETWORKS {
        let (path, variant) = live::write(folder, network);
        models.push((network.0, path, variant));
    }
    println!("| network | starts | model | KV and states | compute, flash attention on | compute, off |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (name, path, variant) in &models {
        let mut worst = [0.0f64; 4];
        let mut starts = 0;
        for setting in &settings {
            if setting.context > variant.architecture.trained_context.unwrap_or(u64::MAX) {
                continue;
            }
            let found = match live::run(server, path, variant, setting) {
                Ok(found) => found,
                Err(log) => {
                    println!("{name}, {setting}:\n{log}");
                    return ExitCode::FAILURE;
                }
            };
            starts += 1;
            let compute = if setting.flash { 2 } else { 3 };
            for (slot, pair) in [(0, found.model), (1, found.kv), (compute, found.compute)] {
                if pair.error().abs() > worst[slot].abs() {
                    worst[slot] = pair.error();
                }
            }
            if setting.slots > 1 || !setting.flash {
                continue;
            }
            let measured = found.kv.measured + found.compute.measured;
            ours.push(Pair { predicted: found.kv.predicted + found.compute.predicted, measured });
            if fit != "-"
                && let Some((context, compute)) = live::fit_params(fit, path, setting)
            {
                theirs.push(Pair { predicted: context + compute, measured });
            }
        }
        println!(
            "| {name} | {starts} | {:+.2} % | {:+.2} % | {:+.2} % | {:+.2} % |",
            worst[0], worst[1], worst[2], worst[3]
        );
    }
    println!("\nWorst errors over contexts of 512, 2048 and 8192 tokens, 1 and 4 slots, f16 and q8_0.\n");
    for (who, pairs) in [("flock", &ours), ("llama-fit-params", &theirs)] {
        if pairs.is_empty() {
            continue;
        }
        let errors = || pairs.iter().map(|pair| pair.error());
        let worst = errors().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
        let below = errors().filter(|error| *error < -0.5).count();
        println!(
            "- {who}, caches, states and compute together, one slot, flash attention on, {} starts: median error {:.2} %, worst {worst:+.1} %, \
             {below} more than 0.5 % below.",
            pairs.len(),
            median(errors().map(f64::abs).collect())
        );
    }
    ExitCode::SUCCESS
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
