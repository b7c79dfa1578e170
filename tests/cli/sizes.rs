//! `flock size` of published models on a stand-in hub: repositories whose files are headers and nothing else. What is
//! said of each piece of hardware is held against arithmetic on the published shapes.
//!
//! `scripts/show-sizes` prints what is checked here.

use std::time::Duration;

use serde_json::{Value, json};

use crate::headers::{self, HeaderFile, Row};
use crate::published::publish;
use crate::support::hub::StandInHub;
use crate::support::{Outcome, Repository, Running, list, number, text};

const GIB: f64 = (1_u64 << 30) as f64;

/// A hub, and a folder to ask it from.
struct World {
    hub: StandInHub,
    here: Repository,
}

impl World {
    fn new() -> Self {
        Self { hub: StandInHub::start(), here: Repository::empty() }
    }

    fn add(&self, repository: &str, parts: &[(&str, Vec<HeaderFile>)]) {
        publish(&self.hub, repository, &json!({}), parts);
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.here.command();
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("HF_HOME", self.here.beside("hub")).args(arguments);
        Running::start(command).finish(Duration::from_secs(300))
    }

    /// `flock size`, as a program reads it. With `FLOCK_SHOW` it is printed as people see it, too.
    fn size(&self, repository: &str, on: &[&str], more: &[&str]) -> Sized {
        let source = format!("hf:{repository}");
        let on: Vec<&str> = on.iter().flat_map(|on| ["--accelerator", on]).collect();
        let arguments = [&["size", &source], more, &on].concat();
        if std::env::var_os("FLOCK_SHOW").is_some() {
            let shown = self.run(&arguments);
            let without = |line: &&str| !line.contains(" refused: ");
            let lines: Vec<&str> = shown.expect(0).stdout.lines().filter(without).collect();
            eprintln!("$ flock {}\n{}\n", arguments.join(" "), lines.join("\n"));
        }
        Sized(self.run(&[&arguments[..], &["--format", "json"]].concat()).expect(0).json())
    }
}

/// What `flock size` said.
struct Sized(Value);

impl Sized {
    fn fit(&self, on: &str, variant: &str) -> &Value {
        let of = |fit: &&Value| text(fit, "/accelerator") == on && text(fit, "/variant") == variant;
        list(&self.0, "/fits").iter().find(of).unwrap_or_else(|| panic!("{on} {variant}: {:#}", self.0["fits"]))
    }

    fn fits(&self, on: &str, variant: &str) -> bool {
        self.fit(on, variant)["fits"] == true
    }

    /// The best variant on something, and why not the next better one.
    fn best(&self, on: &str) -> (Option<&str>, Option<&str>) {
        let of = |best: &&Value| text(best, "/accelerator") == on;
        let best = list(&self.0, "/best").iter().find(of).expect("one for each");
        (best["variant"].as_str(), best["reason"].as_str())
    }

    fn variant(&self, id: &str) -> &Value {
        let of = |variant: &&Value| text(variant, "/id") == id;
        list(&self.0, "/variants").iter().find(of).unwrap_or_else(|| panic!("no {id}: {:#}", self.0["variants"]))
    }

    /// Bytes of a variant's weights within 2 % of what is expected.
    fn weighs(&self, id: &str, gib: f64) {
        let found = number(self.variant(id), "/weights_bytes") as f64 / GIB;
        assert!((found - gib).abs() < 0.02 * gib, "{id}: {found} GiB, expected {gib}");
    }

    /// Bytes per token, and those of all tokens within 1 %.
    fn keeps(&self, per_token: u64, gib: f64) {
        assert_eq!(number(&self.0, "/kv/bytes_per_token"), per_token);
        let found = number(&self.0, "/kv/total_bytes") as f64 / GIB;
        assert!((found - gib).abs() < 0.01 * gib, "{found} GiB of KV, expected {gib}");
    }
}

fn row(model: &str) -> Row {
    headers::row(model).unwrap_or_else(|| panic!("{model} is not in the table"))
}

fn files(row: &Row, quantisation: &str) -> Vec<HeaderFile> {
    headers::safetensors(row, quantisation, 4).unwrap_or_else(|| panic!("{} in {quantisation}", row.model()))
}

#[test]
fn llama_3_70b_is_not_for_one_small_card() {
    let world = World::new();
    let row = row("meta-llama/Meta-Llama-3-70B-Instruct");
    let on = ["24GiB", "48GiB", "80GiB", "2x24GiB", "2x80GiB"];
    for (name, quantisation) in [("Full", "bf16"), ("FP8", "fp8-tensor"), ("GPTQ", "gptq-int4"), ("AWQ", "awq-int4")] {
        world.add(&format!("lab/Llama-3-70B-{name}"), &[("", files(&row, quantisation))]);
    }

    // 70.55 billion parameters; 80 layers x 2 x 8 heads x 128 x 2 bytes a token.
    let full = world.size("lab/Llama-3-70B-Full", &on, &[]);
    full.weighs("bf16", 131.4);
    full.keeps(327_680, 2.5);
    let fits: Vec<bool> = on.iter().map(|on| full.fits(on, "bf16")).collect();
    assert_eq!(fits, [false, false, false, false, true]);
    assert_eq!(full.best("80GiB"), (None, Some("needs 131.4 GiB for its weights, 1 x 73.6 usable")));
    assert_eq!(full.best("2x80GiB"), (Some("bf16"), None));

    // "4-bit on 24 GB" is impossible, "8-bit on 80 GB" is not; 2 x 24 GB take 4 bits with a short context only.
    let eight = world.size("lab/Llama-3-70B-FP8", &on, &[]);
    eight.weighs("fp8", 67.7);
    let fits: Vec<bool> = on.iter().map(|on| eight.fits(on, "fp8")).collect();
    assert_eq!(fits, [false, false, true, false, true]);
    for (name, id, weights) in [("GPTQ", "gptq-int4", 37.1), ("AWQ", "awq-int4", 37.0)] {
        let name = format!("lab/Llama-3-70B-{name}");
        let four = world.size(&name, &on, &[]);
        four.weighs(id, weights);
        let fits: Vec<bool> = on.iter().map(|on| four.fits(on, id)).collect();
        assert_eq!(fits, [false, true, true, false, true], "{name}");
        let why = four.best("24GiB").1.expect("a reason");
        assert!(why.ends_with("for its weights, 1 x 22.1 usable"), "{why}");
        let short = world.size(&name, &["24GiB", "2x24GiB"], &["--context", "4096"]);
        assert!(!short.fits("24GiB", id) && short.fits("2x24GiB", id), "{name}");
    }

    // What would fit is said.
    let said = |repository: &str, on: &str| world.run(&["size", &format!("hf:{repository}"), "--accelerator", on]);
    let four = said("lab/Llama-3-70B-GPTQ", "24GiB");
    four.expect(0).expect_says("24GiB is too little: gptq-int4 fits 2 x 24.0 GiB with a context of 4096");
    let full = said("lab/Llama-3-70B-Full", "80GiB");
    full.expect(0).expect_says("80GiB is too little: bf16 fits 2 x 80.0 GiB; or a variant of at most 69.5 GiB (8.5");
}

#[test]
fn a_repository_with_several_variants_says_which_is_the_best_on_each() {
    let world = World::new();
    let row = row("meta-llama/Meta-Llama-3-70B-Instruct");
    let parts = [("", files(&row, "bf16")), ("fp8", files(&row, "fp8-tensor")), ("awq", files(&row, "awq-int4"))];
    world.add("lab/Llama-3-70B", &parts);
    let all = world.size("lab/Llama-3-70B", &["48GiB", "80GiB", "2x80GiB"], &[]);
    let ids: Vec<&str> = list(&all.0, "/variants").iter().map(|variant| text(variant, "/id")).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
    let (best, why) = all.best("80GiB");
    assert!(best.is_some_and(|best| best.starts_with("fp8")), "{best:?}");
    assert_eq!(why, Some("needs 131.4 GiB for its weights, 1 x 73.6 usable"));
    let (best, why) = all.best("48GiB");
    assert!(best.is_some_and(|best| best.starts_with("awq")), "{best:?}");
    assert_eq!(why, Some("needs 67.7 GiB for its weights, 1 x 44.2 usable"));
    assert_eq!(all.best("2x80GiB"), (Some("bf16"), None));
}

#[test]
fn mixtral_fits_two_cards_of_48_in_eight_bits() {
    let world = World::new();
    let row = row("mistralai/Mixtral-8x7B-v0.1");
    let parts = [("", files(&row, "bf16")), ("int8", files(&row, "int8"))];
    world.add("lab/Mixtral-8x7B", &parts);
    let found = world.size("lab/Mixtral-8x7B", &["2x48GiB", "2x80GiB"], &[]);
    // 46.7 billion parameters: 43.5 GiB on each of two cards; 32 layers x 2 x 8 heads x 128 x 2 bytes.
    found.weighs("bf16", 87.0);
    found.keeps(131_072, 4.0);
    assert!(!found.fits("2x48GiB", "bf16") && found.fits("2x80GiB", "bf16"));
    let (best, why) = found.best("2x48GiB");
    assert!(best.is_some_and(|best| best.starts_with("int8")), "{best:?}");
    let why = why.expect("a reason");
    assert!(why.starts_with("needs 2 x 47.8 GiB (weights 43.5 GiB, KV 2.0 GiB, "), "{why}");
    assert!(why.ends_with("2 x 44.2 usable"), "{why}");
}

#[test]
fn deepseek_v3_keeps_its_latent_whole_on_every_rank() {
    let world = World::new();
    let row = row("deepseek-ai/DeepSeek-V3");
    world.add("lab/DeepSeek-V3", &[("", files(&row, "fp8"))]);
    let found = world.size("lab/DeepSeek-V3", &["8x80GiB", "8xH200"], &["--context", "163840"]);
    // 61 layers x (512 + 64) x 2 bytes a token, however many ranks.
    found.weighs("fp8", 626.0);
    found.keeps(70_272, 10.72);
    assert_eq!(found.0["kv"]["replicated_over_tp"], true);
    assert!(!found.fits("8x80GiB", "fp8") && found.fits("8xH200", "fp8"));
    let why = found.best("8x80GiB").1.expect("a reason");
    assert!(why.ends_with("for its weights, 8 x 73.6 usable"), "{why}");
}

#[test]
fn gemma_3_27b_fits_one_card_at_128k() {
    let world = World::new();
    let row = row("google/gemma-3-27b-it");
    world.add("lab/gemma-3-27b-it", &[("", files(&row, "bf16"))]);
    let found = world.size("lab/gemma-3-27b-it", &["80GiB", "24GiB"], &["--context", "131072"]);
    // Ten layers look at everything (10.0 GiB), the others at a window and a step's tokens.
    found.weighs("bf16", 51.1);
    assert_eq!(found.0["attention"], "sliding");
    let kv = number(&found.0, "/kv/total_bytes") as f64 / GIB;
    assert!((10.4..11.5).contains(&kv), "{kv}");
    assert!(found.fits("80GiB", "bf16") && !found.fits("24GiB", "bf16"));
    let needed = number(found.fit("80GiB", "bf16"), "/needed_bytes") as f64 / GIB;
    assert!((64.0 * 0.95..64.0 * 1.05).contains(&needed), "{needed}");
}

#[test]
fn qwen3_30b_a3b_holds_all_its_experts() {
    let world = World::new();
    let row = row("Qwen/Qwen3-30B-A3B");
    world.add("lab/Qwen3-30B-A3B", &[("", files(&row, "bf16"))]);
    let on = ["48GiB", "80GiB", "2x48GiB", "4xTesla V100-SXM2-32GB"];
    let found = world.size("lab/Qwen3-30B-A3B", &on, &[]);
    // 30.5 billion parameters are resident although 3.3 are active; 48 layers x 2 x 4 heads x 128 x 2 bytes.
    found.weighs("bf16", 56.9);
    found.keeps(98_304, 3.0);
    let fits: Vec<bool> = on.iter().map(|on| found.fits(on, "bf16")).collect();
    assert_eq!(fits, [false, true, true, false]);
    // Four V100 have the memory and no bf16.
    let why = found.best("4xTesla V100-SXM2-32GB").1;
    assert_eq!(why, Some("bf16 needs compute capability 8.0, this is 7.0 (Tesla V100-SXM2-32GB)"));
}

#[test]
fn llava_next_brings_its_tower() {
    let world = World::new();
    let row = row("llava-hf/llava-v1.6-mistral-7b-hf");
    world.add("lab/llava", &[("", files(&row, "f16"))]);
    let found = world.size("lab/llava", &["16GiB", "24GiB"], &[]);
    // Mistral 7B (13.5 GiB) with a tower of 0.3 billion and its projector.
    found.weighs("f16", 14.1);
    found.keeps(131_072, 4.0);
    assert!(!found.fits("16GiB", "f16") && found.fits("24GiB", "f16"));
}

#[test]
fn qwen_2_5_72b_in_gptq_takes_two_cards_of_48() {
    let world = World::new();
    let on = ["L20", "2xL20", "4xL20"];
    // The published GPTQ repository pads the MLP to 29696, so that halves are whole groups.
    let row = row("Qwen/Qwen2.5-72B-Instruct");
    world.add("lab/Padded", &[("", files(&row.clone().with("intermediate", 29_696), "gptq-int4"))]);
    let found = world.size("lab/Padded", &on, &["--context", "32768"]);
    found.weighs("gptq-int4", 39.1);
    found.keeps(327_680, 10.0);
    assert_eq!(found.0["splits"]["tensor_parallel"], json!([1, 2, 4, 8]));
    let fits: Vec<bool> = on.iter().map(|on| found.fits(on, "gptq-int4")).collect();
    assert_eq!(fits, [false, true, true]);
    // As the base model has it, 29568, nothing can be cut: said so, and no two ranks are proposed.
    world.add("lab/Unpadded", &[("", files(&row, "gptq-int4"))]);
    let found = world.size("lab/Unpadded", &on, &["--context", "32768"]);
    assert_eq!(found.0["splits"]["tensor_parallel"], json!([1]));
    let why = found.best("2xL20").1.expect("a reason");
    assert!(why.contains("1 x 41.4 usable; not over 2: ") && why.contains("14784 % 128"), "{why}");
}

#[test]
fn a_gguf_repository_has_a_best_for_every_size() {
    let world = World::new();
    let row = row("Qwen/Qwen2.5-32B-Instruct");
    // Twelve quantisations; the largest are split.
    let kinds =
        ["BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "IQ4_XS", "Q4_K_S", "Q4_0", "Q3_K_M", "Q3_K_S", "Q2_K"];
    let of = |kind: &str| {
        let shards = if ["BF16", "Q8_0"].contains(&kind) { 3 } else { 1 };
        headers::gguf(&row, kind, &format!("Qwen2.5-32B-Instruct-{kind}"), shards).expect("a known type")
    };
    let files: Vec<HeaderFile> = kinds.iter().flat_map(|kind| of(kind)).collect();
    world.add("lab/Qwen2.5-32B-GGUF", &[("", files)]);
    let on = ["12GiB", "16GiB", "24GiB", "48GiB", "80GiB", "2x24GiB"];
    let found = world.size("lab/Qwen2.5-32B-GGUF", &on, &["--context", "8192"]);
    assert_eq!(list(&found.0, "/variants").len(), kinds.len());
    assert_eq!(list(found.variant("gguf:Q8_0"), "/files").len(), 3);
    found.weighs("gguf:Q8_0", 32.4);
    found.weighs("gguf:Q4_K_M", 18.5);
    found.keeps(262_144, 2.0);
    let best: Vec<Option<&str>> = on.iter().map(|on| found.best(on).0).collect();
    let expected = ["-", "gguf:Q2_K", "gguf:Q4_K_M", "gguf:Q8_0", "gguf:bf16", "gguf:Q8_0"];
    assert_eq!(best.iter().map(|best| best.unwrap_or("-")).collect::<Vec<_>>(), expected);
    let why = found.best("24GiB").1.expect("a reason");
    assert!(why.starts_with("needs 23.") && why.ends_with("1 x 22.1 usable"), "{why}");
    // Every quantisation above the best does not fit, every one below does.
    let fits: Vec<bool> = list(&found.0, "/variants").iter().map(|v| found.fits("24GiB", text(v, "/id"))).collect();
    assert!(fits.is_sorted(), "{fits:?}");
}
