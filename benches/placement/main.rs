//! Placement from 12 to 10,000 accelerators, as tables in markdown.
//!
//! `cargo bench --bench placement` (add `--profile dev` for a build without optimisation; then only small sizes are
//! worth the wait). `-- --sizes 12,100 --seed 7` chooses, `--growth` adds the tables of growth, `--helix` the published clusters, `--json` prints the
//! figures instead. Every size runs in a process of its own, so that its memory can be told.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is what this program is for")]
#![allow(clippy::disallowed_methods, reason = "it measures time and reads the process's own figures")]

#[path = "../../tests/support/headers.rs"]
mod headers;

mod applied;
mod baselines;
mod generate;
mod helix;
mod measure;
mod table;

use std::process::{Command, ExitCode};

use generate::Size;
use measure::Figures;

/// Sizes of the first table.
const SIZES: &[usize] = &[12, 100, 1_000, 10_000];

struct Asked {
    sizes: Vec<usize>,
    seed: u64,
    growth: bool,
    helix: bool,
    json: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--one", rest @ ..] = words.as_slice() {
        return one(rest);
    }
    match asked(&words)
        .ok_or("usage: [--sizes N,N…] [--seed N] [--growth] [--helix] [--json]".to_owned())
        .and_then(|a| all(&a))
    {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn asked(words: &[&str]) -> Option<Asked> {
    let mut asked = Asked { sizes: SIZES.to_vec(), seed: 1, growth: false, helix: false, json: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--sizes" => {
                asked.sizes = words.next()?.split_terminator(',').map(|n| n.parse().ok()).collect::<Option<_>>()?
            }
            "--seed" => asked.seed = words.next()?.parse().ok()?,
            "--growth" => asked.growth = true,
            "--helix" => asked.helix = true,
            "--json" => asked.json = true,
            _ => return None,
        }
    }
    Some(asked)
}

/// Every size, each in its own process; whether no checker had anything against any of it.
fn all(asked: &Asked) -> Result<bool, String> {
    let mut main = Vec::new();
    for accelerators in &asked.sizes {
        for threads in [1, 2] {
            main.push(apart(&Size::of(*accelerators, asked.seed), threads)?);
        }
    }
    let growth = if asked.growth { growth(asked.seed)? } else { Vec::new() };
    if asked.json {
        let all: Vec<&Figures> = main.iter().chain(growth.iter().flat_map(|(_, rows)| rows)).collect();
        println!("{}", serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?);
    } else {
        table::print(&main, &growth);
    }
    let faults = main.iter().chain(growth.iter().flat_map(|(_, rows)| rows)).flat_map(|f| &f.faults);
    let helix = if asked.helix { helix::outcomes() } else { Vec::new() };
    if !asked.json {
        table::pipelines(&helix);
    }
    let mut faults = faults.chain(helix.iter().flat_map(|outcome| &outcome.faults)).peekable();
    let sound = faults.peek().is_none();
    faults.take(20).for_each(|fault| eprintln!("fault: {fault}"));
    Ok(sound)
}

/// A cluster of the middle, and others that differ in one thing.
fn growth(seed: u64) -> Result<Vec<(&'static str, Vec<Figures>)>, String> {
    let base = Size { kinds: 100, replicas: 2_000, ..Size::of(1_000, seed) };
    let by = |word, of: fn(usize) -> Size, values: &[usize]| {
        let rows = values.iter().map(|value| apart(&Size { seed, ..of(*value) }, 1)).collect::<Result<Vec<_>, _>>();
        rows.map(|rows| (word, rows))
    };
    debug_assert_eq!(base, Size { seed, ..of_accelerators(1_000) });
    Ok(vec![
        by("accelerators", of_accelerators, &[250, 500, 1_000, 2_000, 4_000])?,
        by("models", of_kinds, &[25, 50, 100, 200, 400])?,
        by("replicas", of_replicas, &[500, 1_000, 2_000, 4_000, 8_000])?,
    ])
}

fn of_accelerators(accelerators: usize) -> Size {
    Size { accelerators, kinds: 100, replicas: 2_000, load: 1.05, seed: 0 }
}

fn of_kinds(kinds: usize) -> Size {
    Size { kinds, ..of_accelerators(1_000) }
}

fn of_replicas(replicas: usize) -> Size {
    Size { replicas, ..of_accelerators(1_000) }
}

/// One size in a process of its own.
fn apart(size: &Size, threads: usize) -> Result<Figures, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    eprintln!(
        "{} accelerators, {} models, {} replicas, {threads} thread(s)",
        size.accelerators, size.kinds, size.replicas
    );
    let numbers = [size.accelerators, size.kinds, size.replicas, threads].map(|n| n.to_string());
    let output = Command::new(own)
        .arg("--one")
        .args(numbers)
        .args([size.load.to_string(), size.seed.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{} accelerators: {}", size.accelerators, output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The other process: figures as JSON.
fn one(words: &[&str]) -> ExitCode {
    let [accelerators, kinds, replicas, threads, load, seed] = words else { return ExitCode::FAILURE };
    let number = |text: &str| text.parse::<usize>().ok();
    let size = (|| {
        Some(Size {
            accelerators: number(accelerators)?,
            kinds: number(kinds)?,
            replicas: number(replicas)?,
            load: load.parse().ok()?,
            seed: seed.parse().ok()?,
        })
    })();
    let (Some(size), Some(threads)) = (size, number(threads)) else { return ExitCode::FAILURE };
    let figures = measure::measure(&size, threads);
    match serde_json::to_string(&figures) {
        Ok(text) => println!("{text}"),
        Err(_) => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}
