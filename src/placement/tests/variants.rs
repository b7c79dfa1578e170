//! The right variant for each piece of hardware, and why not the next better one.

use super::inputs::{CARD, Card, dense, desired, inventory, llama_8b, run, weights};
use crate::base::GIB;
use crate::inventory::Inventory;
use crate::placement::*;
use crate::weights::{Architecture, PerLayer, Quantisation, Sliding, Variant};

pub(super) const A100: Card = ("NVIDIA A100-SXM4-80GB", 81_920, "8.0", None);
const T4: Card = ("Tesla T4", 15_360, "7.5", None);
const L20: Card = ("NVIDIA L20", 46_068, "8.9", None);

/// The same network with other weights.
fn quantised(base: &Variant, id: &str, method: &str, bits: u32, block: Option<u32>, bytes: u64) -> Variant {
    let embedding = base.tensors.embedding_bytes;
    let mut variant = base.clone();
    variant.id = id.to_owned();
    variant.quality = id.parse().unwrap();
    variant.quantisation = Some(Quantisation { method: method.to_owned(), bits: Some(bits), block });
    variant.download_bytes = bytes;
    variant.tensors.total_bytes = bytes;
    let layers = variant.tensors.layer_bytes.len() as u64;
    variant.tensors.layer_bytes = vec![(bytes - 2 * embedding) / layers; layers as usize];
    variant
}

/// Qwen2.5-32B: 64 layers, 40 heads, 8 KV heads, MLP 27648; 65.5 GB in bf16, 19.4 GB in 4 bits.
pub(super) fn qwen_32b() -> Vec<Variant> {
    let mut bf16 = dense(64, 5120, 8, 27_648, 152_064, 65_527_752_704);
    bf16.architecture.heads = PerLayer::All(40);
    let fp8 = quantised(&bf16, "fp8", "fp8", 8, None, 34_320_000_000);
    let awq = quantised(&bf16, "awq-int4", "awq", 4, Some(128), 19_350_000_000);
    vec![bf16, fp8, awq]
}

/// Llama-3-70B: 80 layers, 64 heads, 8 KV heads; 141.1 GB in bf16.
pub(super) fn llama_70b() -> Vec<Variant> {
    let mut bf16 = dense(80, 8192, 8, 28_672, 128_256, 141_107_412_992);
    bf16.architecture.heads = PerLayer::All(64);
    bf16.architecture.trained_context = Some(8192);
    let fp8 = quantised(&bf16, "fp8", "fp8", 8, None, 72_660_000_000);
    let awq = quantised(&bf16, "awq-int4", "awq", 4, Some(128), 39_770_000_000);
    vec![bf16, fp8, awq]
}

pub(super) fn gguf(base: &Variant, quality: &str, bytes: u64) -> Variant {
    let mut variant = quantised(base, quality, "gguf", 8, None, bytes);
    variant.id = format!("gguf:{quality}");
    variant.format = crate::base::WeightFormat::Gguf;
    variant.start_file = Some(format!("{quality}.gguf"));
    variant.quantisation = None;
    variant
}

fn config(more: &str) -> String {
    format!(
        "node \"small\" address=\"10.0.0.1\"\nnode \"large\" address=\"10.0.0.2\"\n\
         model \"m\" {{ source \"path:/m\"; engine \"vllm\"; context 4096; {more} }}\n"
    )
}

const SPREAD: &str = "replicas min=1 max=2; place { spread by=\"node\" }";

fn taken<'p>(placement: &'p Placement, list: &[Variant], node: &str) -> (String, &'p Placed) {
    let placed = placement.instances.iter().find(|placed| placed.node == node);
    let placed = placed.unwrap_or_else(|| panic!("nothing on {node}: {:#?}", placement.unplaced));
    (list[placed.candidate].id.clone(), placed)
}

#[test]
fn each_node_takes_the_best_variant_that_fits_it_and_says_why_not_a_better_one() {
    let both = inventory(&[("small", &[CARD]), ("large", &[A100])]);
    let list = qwen_32b();
    let placement = run(&config(SPREAD), &both, &weights("m", list.clone()));
    let (variant, large) = taken(&placement, &list, "large");
    assert_eq!((variant.as_str(), large.because.as_str()), ("bf16", "bf16 is the best variant, on one accelerator"));
    assert_eq!(large.better, []);
    let (variant, small) = taken(&placement, &list, "small");
    assert_eq!(variant, "awq-int4");
    let reasons: Vec<(&str, &str)> = small.better.iter().map(|b| (b.variant.as_str(), b.reason.as_str())).collect();
    assert_eq!(
        reasons,
        [
            ("bf16", "needs 61.0 GiB for its weights, 1 x 22.1 usable"),
            ("fp8", "needs 32.0 GiB for its weights, 1 x 22.1 usable"),
        ]
    );
    let because = "awq-int4 is the best variant that fits, on one accelerator; fp8 needs 32.0 GiB for its weights, \
                   1 x 22.1 usable";
    assert_eq!(small.because, because);
    // Every variant on every node, best first.
    let rows: Vec<(&str, &str, u32)> =
        placement.variants.iter().map(|at| (at.variant.as_str(), at.node.as_str(), at.replicas)).collect();
    let expected = [("bf16", 1), ("fp8", 0), ("awq-int4", 0)]
        .into_iter()
        .flat_map(|(variant, large)| [(variant, "large", large), (variant, "small", u32::from(variant == "awq-int4"))]);
    assert_eq!(rows, expected.collect::<Vec<_>>());

    let large = placement.variants.iter().find(|at| at.variant == "fp8" && at.node == "large").unwrap();
    assert_eq!(large.reason, "bf16 is taken here");

    // With the large node gone, the small one keeps its own, and the other replica says what would do.
    let alone = inventory(&[("small", &[CARD])]);
    let placement = run(&config(SPREAD), &alone, &weights("m", list.clone()));
    assert_eq!(taken(&placement, &list, "small").0, "awq-int4");
    assert_eq!((placement.unplaced[0].replicas, placement.unplaced[0].required), (1, false));
    // Another accelerator in the same node would not help: its replica is there.
    assert_eq!(placement.unplaced[0].nearest, "one more `node` to spread to, or fewer replicas");
}

#[test]
fn a_seventy_billion_model_says_what_its_weights_need() {
    let both = inventory(&[("small", &[CARD, CARD]), ("large", &[A100])]);
    let list = llama_70b();
    let placement = run(&config(SPREAD), &both, &weights("m", list.clone()));
    let (variant, large) = taken(&placement, &list, "large");
    assert_eq!(variant, "fp8");
    assert_eq!(large.better[0].reason, "needs 131.4 GiB for its weights, 1 x 73.6 usable");
    // Four bits on two cards of 24 GB, with a short context.
    let (variant, small) = taken(&placement, &list, "small");
    assert_eq!((variant.as_str(), small.tensor_parallel), ("awq-int4", 2));
    assert_eq!(small.better[1].reason, "needs 67.7 GiB for its weights, 2 x 22.1 usable");

    // One card of 24 GB is not enough whatever the variant; what would do is said with its variant.
    let one = inventory(&[("small", &[CARD])]);
    let refused = run(&config(""), &one, &weights("m", list));
    let nearest = &refused.unplaced[0].nearest;
    assert!(
        refused.instances.is_empty() && nearest.contains("2 accelerators like NVIDIA GeForce RTX 4090"),
        "{nearest}"
    );
    assert!(nearest.contains("for awq-int4") && nearest.contains("a variant of at most "), "{nearest}");
    let anywhere = refused.variants.iter().find(|at| at.variant == "awq-int4" && at.node == "small").unwrap();
    assert_eq!(anywhere.reason, "needs 37.0 GiB for its weights, 1 x 22.1 usable");
}

#[test]
fn what_runs_with_different_variants_stays_so() {
    let mut both = inventory(&[("small", &[CARD]), ("large", &[A100])]);
    let list = qwen_32b();
    let candidates = weights("m", list.clone());
    let first = run(&config(SPREAD), &both, &candidates);
    for placed in &first.instances {
        let node = both.nodes.iter_mut().find(|node| node.name == placed.node).unwrap();
        let instance = serde_json::json!({ "instance": placed.node, "specification": "sha256:0", "model": "m",
            "replica": placed.replica, "engine": "vllm", "variant": list[placed.candidate].id,
            "accelerators": placed.accelerators, "port": 20000, "state": "ready", "running": true });
        node.instances.push(serde_json::from_value(instance).unwrap());
        let held = placed.per_accelerator[0].total_bytes();
        let card = &mut node.accelerators[0];
        card.memory.free_bytes = card.memory.free_bytes.map(|free| free - held);
        let process = serde_json::json!({ "pid": 7, "used_bytes": held, "ours": true });
        card.processes.push(serde_json::from_value(process).unwrap());
    }
    let again = run(&config(SPREAD), &both, &candidates);
    let told = |placement: &Placement| -> Vec<(String, u32, usize)> {
        placement.instances.iter().map(|p| (p.node.clone(), p.replica, p.candidate)).collect()
    };
    assert_eq!(told(&again), told(&first));
    assert!(again.instances.iter().all(|placed| placed.because == "already runs here"));
    let small = again.instances.iter().find(|placed| placed.node == "small").unwrap();
    assert_eq!(small.better.len(), 2, "why not a better one is said of what runs, too");
}

fn on_one(card: Card, version: Option<&str>, list: Vec<Variant>, more: &str) -> Placement {
    let mut one = inventory(&[("small", &[card])]);
    one.nodes[0].engines = version.map(|version| {
        let engine = serde_json::json!({ "kind": "vllm", "version": version, "path": "/opt/vllm/bin/vllm" });
        vec![serde_json::from_value(engine).unwrap()]
    });
    run(&config(more), &one, &weights("m", list))
}

#[test]
fn hardware_decides_with_the_engine_s_version() {
    let base = llama_8b();
    let fp8 = quantised(&base, "fp8", "fp8", 8, None, 9 * GIB);
    let awq = quantised(&base, "awq-int4", "awq", 4, Some(128), 6 * GIB);
    let list = vec![fp8.clone(), awq.clone()];
    let reason = |placement: &Placement| placement.instances[0].better.first().map(|b| b.reason.clone());

    // Turing has neither fp8 nor what widens it; the plain AWQ kernel runs there.
    let turing = on_one(T4, Some("0.11.0"), list.clone(), "");
    let expected = "fp8 needs compute capability 8.0 with vllm 0.11.0, this is 7.5 (Tesla T4)";
    assert_eq!(reason(&turing).as_deref(), Some(expected));
    assert_eq!(
        turing.instances[0].because,
        format!("awq-int4 is the best variant that fits, on one accelerator; {expected}")
    );
    // Ampere widens fp8 since 0.5.1.
    assert_eq!(reason(&on_one(A100, Some("0.11.0"), list.clone(), "")), None);
    let old = reason(&on_one(A100, Some("0.5.0"), list.clone(), "")).unwrap();
    assert_eq!(old, "fp8 needs compute capability 8.9 with vllm 0.5.0, this is 8.0 (NVIDIA A100-SXM4-80GB)");

    // A version without the architecture.
    let mut qwen3 = fp8.clone();
    qwen3.architecture.name = "Qwen3ForCausalLM".to_owned();
    let refused = on_one(A100, Some("0.8.0"), vec![qwen3], "");
    let why = refused.unplaced[0].reasons.iter().find(|r| r.node == "small").unwrap();
    assert_eq!(
        (why.constraint.as_str(), why.text.as_str()),
        ("engine", "Qwen3ForCausalLM needs vllm 0.8.4, this is 0.8.0")
    );

    // Unknown hardware is no refusal, and is said.
    let unknown = on_one(("Some New Card", 81_920, "", None), Some("0.11.0"), list.clone(), "");
    assert_eq!(unknown.instances[0].candidate, 0);
    let note = "small: the compute capability of Some New Card is unknown: whether it runs fp8 is not checked";
    assert!(unknown.notes.iter().any(|known| known == note), "{:?}", unknown.notes);
}

#[test]
fn amd_takes_what_rocm_has() {
    let base = llama_8b();
    let list = vec![
        quantised(&base, "fp8", "fp8", 8, None, 9 * GIB),
        quantised(&base, "gptq-int4", "gptq", 4, Some(128), 6 * GIB),
        quantised(&base, "nf4", "bitsandbytes", 4, None, 6 * GIB),
    ];
    let on = |name: &'static str, target: &'static str| {
        let mut one = inventory(&[("small", &[(name, 65_520, target, None)])]);
        one.nodes[0].accelerators[0].vendor = "amd".to_owned();
        run(&config(""), &one, &weights("m", list.clone()))
    };
    let mi300 = on("AMD Instinct MI300X", "gfx942");
    assert_eq!(mi300.instances[0].candidate, 0);
    let mi210 = on("AMD Instinct MI210", "gfx90a");
    assert_eq!(mi210.instances[0].candidate, 1);
    assert!(mi210.instances[0].better[0].reason.starts_with("fp8 needs gfx94x"), "{:?}", mi210.instances[0].better);
    let nf4 = mi210.variants.iter().find(|at| at.variant == "nf4" && at.node == "small").unwrap();
    assert!(nf4.reason.contains("vllm has no bitsandbytes on AMD"), "{}", nf4.reason);
    let mi50 = on("AMD Instinct MI50", "gfx906");
    assert!(mi50.instances.is_empty() && mi50.unplaced[0].reasons.iter().any(|r| r.constraint == "hardware"));
}

#[test]
fn quality_min_and_the_config_s_own_order_are_kept() {
    let both = inventory(&[("small", &[CARD]), ("large", &[A100])]);
    let list = qwen_32b();
    let min = run(&config(&format!("quality min=\"fp8\"; {SPREAD}")), &both, &weights("m", list.clone()));
    assert_eq!(min.instances.len(), 1);
    assert_eq!(taken(&min, &list, "large").0, "bf16");
    let row = min.variants.iter().find(|at| at.variant == "awq-int4").unwrap();
    assert_eq!((row.node.as_str(), row.reason.as_str()), ("*", "awq-int4 is below `quality min=\"fp8\"`"));
    let nearest = &min.unplaced[0].nearest;
    assert!(nearest.contains("allow awq-int4 (the config says `quality min=\"fp8\"`)"), "{nearest}");

    // An explicit list is tried in its own order: 4 bits come first here, although more would fit.
    let listed = "variant \"four\" source=\"path:/four\"\nvariant \"sixteen\" source=\"path:/sixteen\"\n";
    let text = config(&format!("\n{listed}")).replace("source \"path:/m\"; ", "");
    let order = vec![list[2].clone(), list[0].clone()];
    let placement = run(&text, &both, &weights("m", order));
    assert_eq!((placement.instances[0].candidate, placement.instances[0].better.len()), (0, 0));
}

#[test]
fn weights_that_no_engine_of_a_node_reads_are_named_so() {
    let mut both = inventory(&[("small", &[CARD]), ("large", &[A100])]);
    let engine = |kind: &str| serde_json::from_value(serde_json::json!({ "kind": kind, "path": "/opt/e" })).unwrap();
    both.nodes[0].engines = Some(vec![engine("vllm")]);
    both.nodes[1].engines = Some(vec![engine("llama.cpp")]);
    let base = llama_8b();
    let list = vec![gguf(&base, "Q8_0", 9 * GIB), quantised(&base, "awq-int4", "awq", 4, Some(128), 6 * GIB)];
    let text = config(SPREAD).replace("engine \"vllm\";", "engine \"vllm\" \"llama.cpp\";");
    let placement = run(&text, &both, &weights("m", list.clone()));
    assert_eq!(taken(&placement, &list, "large").0, "gguf:Q8_0");
    let (variant, small) = taken(&placement, &list, "small");
    assert_eq!(variant, "awq-int4");
    assert_eq!(small.better[0].reason, "no engine here runs GGUF (llama.cpp was not found on this node)");
    // What no engine of the model reads anywhere does not hide why the next better one is not here.
    let fp8 = quantised(&base, "fp8", "fp8", 8, None, 30 * GIB);
    let list = vec![fp8, list[0].clone(), list[1].clone()];
    let vllm = run(&config(SPREAD), &both, &weights("m", list.clone()));
    let (variant, small) = taken(&vllm, &list, "small");
    assert_eq!((variant.as_str(), small.better.len()), ("awq-int4", 2));
    assert!(small.because.ends_with("fp8 needs 30.0 GiB for its weights, 1 x 22.1 usable"), "{}", small.because);
    let only = run(&config(""), &both, &weights("m", vec![list[1].clone()]));
    assert_eq!(only.variants[0].reason, "vllm does not load gguf weights");
}

#[test]
fn what_a_variant_s_weights_leave_open_is_told_where_it_is_taken() {
    let mut list = qwen_32b();
    list[0].notes.push("architecture \"New\" is sized conservatively".to_owned());
    list[2].notes.push("not the one that is taken".to_owned());
    let one = inventory(&[("large", &[A100])]);
    let placement = run(&config(""), &one, &weights("m", list));
    let about: Vec<&String> = placement.notes.iter().filter(|note| note.starts_with("model `m`")).collect();
    assert_eq!(about, ["model `m`, bf16: architecture \"New\" is sized conservatively"]);
}

#[test]
fn no_size_makes_a_download_or_a_few_cards_weigh_more_than_a_better_variant() {
    // 405 billion parameters: 16 bits on eight cards of 141 GB, 8 bits on four.
    let card: Card = ("NVIDIA H200", 143_771, "9.0", None);
    let eight = inventory(&[("large", &[card; 8])]);
    let mut bf16 = dense(126, 16_384, 8, 53_248, 128_256, 811_700_000_000);
    bf16.architecture.heads = PerLayer::All(128);
    let fp8 = quantised(&bf16, "fp8", "fp8", 8, None, 409_000_000_000);
    let list = vec![bf16, fp8];
    let placement = run(&config(""), &eight, &weights("m", list.clone()));
    let (variant, placed) = taken(&placement, &list, "large");
    assert_eq!((variant.as_str(), placed.tensor_parallel), ("bf16", 8));
}

#[test]
fn a_sliding_window_model_takes_one_card_at_128k() {
    // IN-4: Gemma-3-27B at its full length; with full attention everywhere it would need 113 GiB.
    let mut gemma = dense(62, 5376, 16, 21_504, 262_144, 54_900_000_000);
    let layers = (0..62).map(|layer| (layer + 1) % 6 != 0).collect();
    gemma.architecture = Architecture {
        name: "Gemma3ForConditionalGeneration".to_owned(),
        tied: true,
        sliding: Some(Sliding { window: 1024, layers, head_dims: None }),
        ..gemma.architecture
    };
    gemma.tensors.output_bytes = 0;
    let four = inventory(&[("large", &[A100; 4])]);
    let text = config("").replace("context 4096", "context 131072");
    let placement = run(&text, &four, &weights("m", vec![gemma]));
    let placed = &placement.instances[0];
    assert_eq!(placed.accelerators.len(), 1, "{placed:?}");
    let kv = placed.per_accelerator[0].kv_bytes as f64 / GIB as f64;
    // 10 GiB of the ten global layers; the others hold the window and a step's tokens, in groups of ten.
    assert!((10.4..=11.5).contains(&kv), "{kv}");
}

#[test]
fn a_quantised_seventy_two_billion_model_takes_two_cards_of_48() {
    // IN-6: GPTQ with groups of 128; 29696 / 2 is a multiple of 128.
    let mut base = dense(80, 8192, 8, 29_696, 152_064, 145_400_000_000);
    base.architecture.heads = PerLayer::All(64);
    let gptq = quantised(&base, "gptq-int4", "gptq", 4, Some(128), 41_983_000_000);
    let four = inventory(&[("large", &[L20; 4])]);
    let text = config("").replace("context 4096", "context 32768");
    let placement = run(&text, &four, &weights("m", vec![gptq.clone()]));
    assert_eq!((placement.instances[0].tensor_parallel, placement.instances[0].accelerators.len()), (2, 2));
    let each = &placement.instances[0].per_accelerator[0];
    let gib = |bytes: u64| bytes as f64 / GIB as f64;
    assert!((gib(each.weights_bytes) - 19.6).abs() < 0.4 && (gib(each.kv_bytes) - 5.0).abs() < 0.05, "{each:?}");

    let one = inventory(&[("large", &[L20])]);
    let refused = run(&text, &one, &weights("m", vec![gptq]));
    let needed = refused.unplaced[0].reasons.iter().find(|r| r.node == "large").unwrap();
    assert_eq!(needed.constraint, "memory");
    assert!(gib(needed.needed.unwrap()) > 49.0 && gib(needed.needed.unwrap()) < 60.0, "{needed:?}");
}

#[test]
fn a_block_that_a_split_would_cut_is_never_taken() {
    // IN-8: shared-expert width 512, blocks of 128: eight ranks would have 64 each.
    let mut moe = dense(40, 2048, 2, 512, 248_320, 36 * GIB);
    moe.architecture.heads = PerLayer::All(16);
    moe.architecture.intermediate = Some(512);
    moe.architecture.moe_intermediate = Some(512);
    moe.architecture.experts = Some(256);
    let fp8 = quantised(&moe, "fp8", "fp8", 8, Some(128), 36 * GIB);
    let card: Card = ("NVIDIA L4", 23_034, "8.9", None);
    let eight: Vec<Card> = vec![card; 8];
    let placement = run(&config(""), &inventory(&[("large", &eight)]), &weights("m", vec![fp8]));
    let placed = placement.instances.first().unwrap_or_else(|| panic!("{:#?}", placement.unplaced));
    assert!([2, 4].contains(&placed.tensor_parallel), "{placed:?}");
    let refused = placement.considered.iter().find(|c| c.tensor_parallel == 8).unwrap();
    assert!(refused.verdict.contains("64 < 128"), "{}", refused.verdict);
}

#[test]
fn six_cards_and_forty_heads_are_not_six_ranks() {
    // B1 and B3: 40 heads over 6 cards; what is said is the rule.
    let six = inventory(&[("large", &[CARD; 6])]);
    let mut llama = dense(40, 5120, 40, 13_824, 32_000, 26_031_000_000);
    llama.architecture.heads = PerLayer::All(40);
    let placement = run(&config(""), &six, &weights("m", vec![llama]));
    assert!([2, 4].contains(&placement.instances[0].tensor_parallel), "{:?}", placement.instances);
    let six = placement.considered.iter().find(|c| c.tensor_parallel == 6).unwrap();
    assert!(six.verdict.starts_with("split: all 6 together are not possible"), "{}", six.verdict);
    assert!(six.verdict.ends_with("use tensor parallel 4, or 2 with 3 replicas"), "{}", six.verdict);
}

#[test]
fn the_nearest_change_mends_the_node_that_would_do_otherwise() {
    let both = inventory(&[("small", &[CARD]), ("large", &[A100])]);
    let on_small = |variant: Variant| {
        let mut candidates = weights("m", vec![variant]);
        let Some(Ok(list)) = candidates.get_mut("m") else { unreachable!() };
        list[0].origin = Origin::OnNode { path: "/data/m".to_owned(), nodes: vec!["small".to_owned()] };
        candidates
    };
    // The files are on the small node, the label is on neither: the files' node lacks the label alone.
    let tier = "place { require label=\"tier\" is=\"datacenter\" }";
    let placement = run(&config(tier), &both, &on_small(llama_8b()));
    assert_eq!(placement.unplaced[0].nearest, "the label `tier` set to `datacenter` on small");
    // The label is on the large node: it lacks the files alone.
    let labelled = config(tier).replace(
        "node \"large\" address=\"10.0.0.2\"",
        "node \"large\" address=\"10.0.0.2\" { label \"tier\" \"datacenter\" }",
    );
    let placement = run(&labelled, &both, &on_small(llama_8b()));
    let nearest = &placement.unplaced[0].nearest;
    assert!(nearest.contains("the label `tier` set to `datacenter` on small"), "{nearest}");
    assert!(nearest.contains("/data/m on large: bf16 fits there"), "{nearest}");
    // Too large for the node that has it.
    let placement = run(&config(""), &both, &on_small(qwen_32b()[0].clone()));
    let nearest = &placement.unplaced[0].nearest;
    assert!(nearest.contains("/data/m on large: bf16 fits there"), "{nearest}");
}

#[test]
fn a_slow_processor_is_no_better_variant() {
    // The best variant would fit host memory alone; a lesser one fits the accelerator.
    let base = qwen_32b().remove(0);
    let list = vec![gguf(&base, "Q8_0", 34_820_000_000), gguf(&base, "Q4_K_M", 19_850_000_000)];
    let text = config("place { allow cpu=#true }").replace("engine \"vllm\"", "engine \"llama.cpp\"");
    let one: Inventory = inventory(&[("small", &[CARD])]);
    let placement = run(&text, &one, &weights("m", list.clone()));
    let (variant, placed) = taken(&placement, &list, "small");
    assert_eq!((variant.as_str(), placed.accelerators.len()), ("gguf:Q4_K_M", 1), "{placed:?}");
    assert!(placed.because.contains("weighs best here"), "{}", placed.because);
    assert!(desired(&text).models.contains_key("m"));
}

/// Mixtral 8x7B: 32 layers, 32 heads, 8 KV heads, 8 experts of 14336; 93.4 GB in 16 bits.
fn mixtral() -> Vec<Variant> {
    let mut bf16 = dense(32, 4096, 8, 14_336, 32_000, 93_405_585_408);
    bf16.architecture.name = "MixtralForCausalLM".to_owned();
    bf16.architecture.intermediate = None;
    bf16.architecture.moe_intermediate = Some(14_336);
    bf16.architecture.experts = Some(8);
    bf16.architecture.experts_per_token = Some(2);
    bf16.architecture.trained_context = Some(32_768);
    let int8 = quantised(&bf16, "int8", "compressed-tensors", 8, None, 46_960_000_000);
    let awq = quantised(&bf16, "awq-int4", "awq", 4, Some(128), 24_650_000_000);
    vec![bf16, int8, awq]
}

#[test]
fn mixtral_takes_two_48_gib_cards_in_16_bits_only_where_little_is_set_aside() {
    const A6000: Card = ("NVIDIA RTX A6000", 49_140, "8.6", None);
    let plan = |card: Card, reserve: &str, context: u32| {
        let config = format!(
            "node \"a\" address=\"10.0.0.1\" {{ {reserve} }}\n\
             model \"mixtral\" {{ source \"path:/m\"; engine \"vllm\"; context {context} }}\n"
        );
        let placement = run(&config, &inventory(&[("a", &[card, card])]), &weights("mixtral", mixtral()));
        let placed = placement.instances.first().unwrap_or_else(|| panic!("{:#?}", placement.unplaced)).clone();
        (mixtral()[placed.candidate].id.clone(), placed)
    };
    let (variant, placed) = plan(A6000, "reserve vram=\"1GiB\"", 4096);
    assert_eq!((variant.as_str(), placed.tensor_parallel), ("bf16", 2), "{}", placed.because);
    for (card, reserve, context) in [(A6000, "", 32_768), (A6000, "", 4096), (L20, "reserve vram=\"1GiB\"", 4096)] {
        let (variant, placed) = plan(card, reserve, context);
        assert_eq!((variant.as_str(), placed.tensor_parallel), ("int8", 2), "{} {reserve}", card.0);
        let passed = placed.better.iter().find(|passed| passed.variant == "bf16").unwrap();
        assert!(passed.reason.contains("2 x") && passed.reason.contains("usable"), "{}", passed.reason);
    }
}

#[test]
fn a_small_model_takes_a_consumer_card_though_larger_ones_are_free() {
    let lab = inventory(&[("a100", &[A100; 4]), ("ada", &[CARD; 8])]);
    let config = "node \"a100\" address=\"10.0.0.1\"\nnode \"ada\" address=\"10.0.0.2\"\n\
                  model \"chat\" { source \"path:/m\"; engine \"vllm\"; context 8192 }\n";
    let placement = run(config, &lab, &weights("chat", vec![super::inputs::mistral_7b()]));
    let placed = &placement.instances[0];
    assert_eq!((placed.node.as_str(), placed.accelerators.len()), ("ada", 1));
}
