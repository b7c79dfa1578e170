//! What checking a config costs beyond parsing it: 1000 files, user CPU and wall time.
//!
//! `cargo bench --bench validate` (add `--profile dev` for a build without optimisation). Prints a table; the aim is a
//! ratio of at most 1.5. Both sides use as many threads; the files are in memory.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]
#![allow(clippy::disallowed_methods, reason = "it measures time and reads the process's own figures")]

use std::thread;
use std::time::{Duration, Instant};

use flock::base::{Tree, TreeEntry};
use flock::config;

const FILES: usize = 1000;
/// The kernel counts in hundredths of a second: a run must be long against that.
const ROUNDS: u32 = 5;

fn main() {
    let tree = tree();
    let files: Vec<&str> = tree
        .iter()
        .filter_map(|(_, entry)| match entry {
            TreeEntry::File(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
        .collect();
    let bytes: usize = files.iter().map(|text| text.len()).sum();
    let loaded = config::load(&tree);
    assert!(loaded.desired.is_some(), "{:#?}", loaded.diagnostics.first());
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("{} files, {} KiB, {threads} threads, {ROUNDS} rounds each", files.len(), bytes >> 10);

    let parse = measure(|| parse_alone(&files, threads));
    let load = measure(|| assert!(config::load(&tree).desired.is_some()));
    let format = measure(|| {
        assert!(files.iter().all(|text| config::format_kdl("x.kdl", text.as_bytes()).is_ok()));
    });
    println!("{:<28} {:>12} {:>12}", "", "user CPU", "wall");
    for (name, cost) in [("kdl: parse", parse), ("flock: validate", load), ("flock: fmt (one thread)", format)] {
        println!("{name:<28} {:>9.1} ms {:>9.1} ms", milliseconds(cost.user), milliseconds(cost.wall));
    }
    println!("ratio of user CPU, validate to parse: {:.2}", load.user.as_secs_f64() / parse.user.as_secs_f64());
}

/// As many threads, each with its share of the files.
fn parse_alone(files: &[&str], threads: usize) {
    thread::scope(|scope| {
        for part in files.chunks(files.len().div_ceil(threads)) {
            scope.spawn(move || {
                for text in part {
                    assert!(text.parse::<kdl::KdlDocument>().is_ok());
                }
            });
        }
    });
}

#[derive(Clone, Copy)]
struct Cost {
    user: Duration,
    wall: Duration,
}

/// The cost of one round.
fn measure(mut work: impl FnMut()) -> Cost {
    work();
    let (user, begin) = (user_time(), Instant::now());
    (0..ROUNDS).for_each(|_| work());
    Cost { user: (user_time() - user) / ROUNDS, wall: begin.elapsed() / ROUNDS }
}

/// User time of this process and its threads, from `/proc/self/stat` (field 14, in ticks of 10 ms).
fn user_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    // The name of the program, which may hold blanks, ends with the last parenthesis.
    let after = stat.rsplit_once(')').expect("the name is in parentheses").1;
    let ticks: u64 = after.split_whitespace().nth(11).expect("field 14").parse().expect("a number");
    Duration::from_millis(ticks * 10)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A repository of a large lab: half of the files are workflows, half are nodes and models.
fn tree() -> Tree {
    let mut tree = Tree::new();
    let mut add = |path: String, text: String| tree.insert(path, TreeEntry::File(text.into_bytes()));
    add(
        "cluster.kdl".to_owned(),
        "cluster \"lab\" { reserve vram=\"1GiB\" ram=\"8GiB\" }\nengine \"llama.cpp\" { path \"/opt/llama-server\" }\n\
         include \"machines/*.kdl\"\n"
            .to_owned(),
    );
    for index in 0..FILES / 2 {
        add(format!("machines/m{index}.kdl"), machine(index));
        add(format!("workflows/w{index}.kdl"), workflow(index));
    }
    tree
}

fn machine(index: usize) -> String {
    format!(
        r#"// rack {index}
node "node-{index}" address="10.1.{}.{}" {{
    label "room" "B{index}"   // from the inventory
    label "tier" "consumer"
    reserve vram="2GiB"
}}

/* served to the students */
model "model-{index}" {{
    source "on-node:/data/models/m{index}.gguf"
    engine "llama.cpp"
    context 16384
    concurrency 4
    quality min="Q4_K_M"
    replicas min=1 max=2
    place {{
        require label="tier" is="consumer"
        spread by="node"
    }}
}}
agent "agent-{index}" model="model-{index}" {{ system "You write patches."; max-tokens 2048 }}
"#,
        index / 200,
        index % 200 + 1
    )
}

fn workflow(index: usize) -> String {
    format!(
        r#"workflow "flow-{index}" {{
    input "question" type="string"
    input "parts" type="list"
    keep "72h"
    step "look" agent="agent-{index}" {{ prompt "Describe: {{{{ input.question }}}}" }}
    step "plan" agent="agent-{index}" after="look" {{
        prompt "{{{{ steps.look.text }}}}"   // what was seen
        timeout "20m"
    }}
    step "code" agent="agent-{index}" after="plan" {{
        for-each "{{{{ input.parts }}}}" at-most=4
        prompt "{{{{ item }}}}"
        retry attempts=3
    }}
    step "review" agent="agent-{index}" after="code" {{ prompt "{{{{ steps.code.texts }}}}" }}
    traffic from="agent-{index}" to="agent-{index}" per-turn="200KiB" max-latency="20ms"
}}
"#
    )
}
