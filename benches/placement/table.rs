//! The figures as markdown.

use crate::baselines::Worth;
use crate::helix::Outcome;
use crate::measure::Figures;

/// Everything.
pub fn print(main: &[Figures], growth: &[(&str, Vec<Figures>)]) {
    if !main.is_empty() {
        times(main);
        gaps(main);
        worths(main);
        changes(main);
    }
    for (word, rows) in growth {
        grown(word, rows);
    }
}

fn seconds(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1_000.0) }
}

fn one_thread(main: &[Figures]) -> impl Iterator<Item = &Figures> {
    main.iter().filter(|f| f.threads == 1)
}

fn times(main: &[Figures]) {
    println!("### From parsed inputs to a plan\n");
    println!(
        "| accelerators | nodes | models | replicas | load | shapes | columns | rows | build | first answer | solve and explain | plan | all | all, 2 threads | peak memory |"
    );
    println!("|{}", " ---: |".repeat(15));
    for f in one_thread(main) {
        let other = main.iter().find(|o| o.threads == 2 && o.accelerators == f.accelerators);
        println!(
            "| {} | {} | {} | {} | {:.3} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} MiB |",
            f.accelerators,
            f.nodes,
            f.kinds,
            f.replicas,
            f.load,
            f.shapes,
            f.columns,
            f.rows,
            seconds(f.build_ms),
            seconds(f.incumbent_ms),
            seconds(f.place_ms - f.build_ms),
            seconds(f.plan_ms),
            seconds(f.total_ms),
            other.map_or(String::new(), |o| {
                format!("{}{}", seconds(o.total_ms), if o.digest == f.digest { "" } else { " (another plan)" })
            }),
            f.peak_bytes >> 20,
        );
    }
    println!();
}

fn gaps(main: &[Figures]) {
    println!("### Tiers\n");
    println!("| accelerators | tier | reached | bound | gap |");
    println!("| ---: | --- | ---: | ---: | ---: |");
    for f in one_thread(main) {
        for tier in &f.tiers {
            let gap = if tier.gap == 0.0 { "proven".to_owned() } else { format!("{:.3} %", tier.gap * 100.0) };
            println!("| {} | {} | {:.1} | {:.1} | {gap} |", f.accelerators, tier.name, tier.value, tier.bound);
        }
    }
    println!();
}

fn worths(main: &[Figures]) {
    println!("### Against the baselines\n");
    println!("| accelerators | | flock | (a) | (b) | flock : (a) | flock : (b) |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    for f in one_thread(main) {
        let row = |name: &str, of: &dyn Fn(&Worth) -> u64| {
            let (ours, peer, other) = (of(&f.ours), of(&f.peer), of(&f.decreasing));
            println!(
                "| {} | {name} | {ours} | {peer} | {other} | {} | {} |",
                f.accelerators,
                ratio(ours, peer),
                ratio(ours, other)
            );
        };
        for (index, (rank, ..)) in f.ours.ranks.iter().enumerate() {
            row(&format!("minimum replicas, rank {rank}"), &|w| w.ranks.get(index).map_or(0, |r| u64::from(r.1)));
            row(&format!("replicas, rank {rank}"), &|w| w.ranks.get(index).map_or(0, |r| u64::from(r.2)));
        }
        row("quality points", &|w| w.quality);
        row("placed, would run out of memory", &|w| u64::from(w.out_of_memory));
        row("placed, could not run there", &|w| u64::from(w.refused));
    }
    println!();
}

fn ratio(ours: u64, other: u64) -> String {
    if other == 0 { "-".to_owned() } else { format!("{:.2}", ours as f64 / other as f64) }
}

fn changes(main: &[Figures]) {
    println!("### A change, once all of it runs\n");
    println!("| accelerators | full | nothing changed | a node less | | a model more | |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for f in one_thread(main) {
        let part = |ms: f64| format!("{:.2} of full", ms / f.total_ms.max(0.1));
        println!(
            "| {} | {} | {}, {} steps | {}, {} steps | {} | {}, {} steps | {} |",
            f.accelerators,
            seconds(f.total_ms),
            seconds(f.again.ms),
            f.again.steps,
            seconds(f.node_lost.ms),
            f.node_lost.steps,
            part(f.node_lost.ms),
            seconds(f.model_added.ms),
            f.model_added.steps,
            part(f.model_added.ms),
        );
    }
    println!();
}

fn grown(word: &str, rows: &[Figures]) {
    println!("### Growth with {word}\n");
    println!(
        "| accelerators | models | replicas | columns | rows | build | solve and explain | plan | all | peak memory | largest gap |"
    );
    println!("|{}", " ---: |".repeat(11));
    for f in rows {
        let gap = f.tiers.iter().map(|t| t.gap).fold(0.0, f64::max);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} MiB | {:.3} % |",
            f.accelerators,
            f.kinds,
            f.replicas,
            f.columns,
            f.rows,
            seconds(f.build_ms),
            seconds(f.place_ms - f.build_ms),
            seconds(f.plan_ms),
            seconds(f.total_ms),
            f.peak_bytes >> 20,
            gap * 100.0
        );
    }
    println!();
}

/// Pipelines over the published clusters.
pub fn pipelines(all: &[Outcome]) {
    if all.is_empty() {
        return;
    }
    println!("### Pipelines over published clusters\n");
    println!("| cluster | ways | pipelines asked for | placed | tokens/s | bound | gap | time |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for one in all {
        let gap = (one.bound - one.tokens_per_s).max(0.0) / one.tokens_per_s.max(1.0) * 100.0;
        println!(
            "| {} | {} | {} | {} | {:.0} | {:.0} | {gap:.2} % | {} |",
            one.cluster,
            one.ways,
            one.asked,
            one.placed,
            one.tokens_per_s,
            one.bound,
            seconds(one.ms),
        );
    }
    println!();
    for one in all {
        if let Some(pairs) = one.pairs {
            println!(
                "- {}: of all pairs of ways that fit together, the best has {pairs:.0} tokens/s. Logs of Helix's own solver: {}.",
                one.cluster, one.log
            );
        }
    }
    println!();
}
