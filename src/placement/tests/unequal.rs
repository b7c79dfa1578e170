//! Unequal accelerators, layers in host memory, and models in parts.

use super::inputs::{CARD, Card, inventory, mistral_7b, run, weights};
use super::variants::{A100, gguf, llama_70b, qwen_32b};
use crate::base::{EngineKind, GIB};
use crate::inventory::Inventory;
use crate::placement::*;
use crate::weights::{Variant, VariantFile};

const R3090: Card = ("NVIDIA GeForce RTX 3090", 24_576, "8.6", None);
const R3070: Card = ("NVIDIA GeForce RTX 3070", 8_192, "8.6", None);

fn config(engine: &str, context: u64, more: &str) -> String {
    format!(
        "node \"a\" address=\"10.0.0.1\"\n\
         model \"m\" {{ source \"path:/m\"; engine \"{engine}\"; context {context}; {more} }}\n"
    )
}

fn only(placement: &Placement) -> &Placed {
    assert_eq!(placement.instances.len(), 1, "{:#?}", placement.unplaced);
    &placement.instances[0]
}

fn within(placed: &Placed) {
    for memory in &placed.per_accelerator {
        assert!(memory.total_bytes() <= memory.capacity_bytes, "{memory:?}");
    }
    assert!(placed.host.total_bytes() <= placed.host.capacity_bytes, "{:?}", placed.host);
}

/// What a placement means as a running instance of the inventory.
fn running(inventory: &Inventory, placed: &Placed, layers: &[u32], label: &str) -> Inventory {
    let mut next = inventory.clone();
    for uuid in &placed.accelerators {
        let card = next.nodes[0].accelerators.iter_mut().find(|a| a.uuid == *uuid).unwrap();
        let at = placed.accelerators.iter().position(|own| own == uuid).unwrap();
        let used = placed.per_accelerator[at].total_bytes();
        let process = serde_json::json!({ "pid": 7, "used_bytes": used, "ours": true });
        card.processes.push(serde_json::from_value(process).unwrap());
        card.memory.free_bytes = Some(card.memory.total_bytes.unwrap() - used);
    }
    let instance = serde_json::json!({ "instance": "abc", "specification": "sha256:0", "model": "m", "replica": 0,
        "engine": placed.engine, "variant": label, "accelerators": placed.accelerators, "layers": layers, "port": 20000,
        "state": "ready", "running": true });
    next.nodes[0].instances.push(serde_json::from_value(instance).unwrap());
    next
}

#[test]
fn llama_cpp_splits_its_layers_over_unequal_accelerators() {
    let pair = inventory(&[("a", &[R3070, R3090])]);
    let model = gguf(&qwen_32b()[0], "Q5_K_M", 23_300_000_000);
    let candidates = weights("m", vec![model.clone()]);
    let text = config("llama.cpp", 4096, "");
    let placement = run(&text, &pair, &candidates);
    let placed = only(&placement);
    assert_eq!((placed.tensor_parallel, placed.pipeline_parallel), (1, 2));
    assert_eq!(placed.layers.iter().sum::<u32>(), 64);
    // The faster one holds what it can.
    let fast = placed.accelerators.iter().position(|uuid| uuid == "a#1").unwrap();
    assert!(placed.layers[fast] >= 45, "{:?}", placed.layers);
    within(placed);
    let slow = 1 - fast;
    let words = [(fast, "3090"), (slow, "3070")].map(|(at, kind)| format!("{kind} ({} layers)", placed.layers[at]));
    assert!(words.iter().all(|word| placed.because.contains(word)), "{}", placed.because);
    assert!(placed.because.contains("over a's "), "{}", placed.because);

    // What runs keeps its layers, even where another split would be chosen now.
    let mut other = placed.layers.clone();
    other[fast] -= 1;
    other[slow] += 1;
    let placed = placed.clone();
    let after = run(&text, &running(&pair, &placed, &other, &model.id), &candidates);
    let kept = only(&after);
    assert_eq!((kept.because.as_str(), &kept.layers), ("already runs here", &other));
    assert_eq!(kept.accelerators, placed.accelerators);

    // Where one holds all, no split is looked at.
    let small = gguf(&qwen_32b()[0], "Q4_K_M", 14_000_000_000);
    let placement = run(&text, &pair, &weights("m", vec![small]));
    assert_eq!((only(&placement).accelerators.as_slice(), only(&placement).layers.len()), (&["a#1".to_owned()][..], 0));
    assert!(placement.considered.iter().all(|c| c.tensor_parallel < 2), "{:#?}", placement.considered);
}

/// Case IN-14: a 7B model in 16 bits where the large card has 12 GiB free.
#[test]
fn vllm_runs_stages_of_unequal_length_or_says_what_is_missing() {
    let mut pair = inventory(&[("a", &[R3090, R3070])]);
    let candidates = weights("m", vec![mistral_7b()]);
    assert_eq!(only(&run(&config("vllm", 8192, ""), &pair, &candidates)).accelerators, ["a#0"]);

    pair.nodes[0].accelerators[0].memory.free_bytes = Some(13 * GIB);
    let placement = run(&config("vllm", 2048, ""), &pair, &candidates);
    let placed = only(&placement);
    assert_eq!((placed.tensor_parallel, placed.pipeline_parallel), (1, 2));
    let large = placed.accelerators.iter().position(|uuid| uuid == "a#0").unwrap();
    assert_eq!(placed.layers.iter().sum::<u32>(), 32);
    assert!((22..=25).contains(&placed.layers[large]), "{:?}", placed.layers);
    within(placed);
    pair.nodes[0].accelerators[0].memory.free_bytes = Some(12 * GIB);
    let refused = run(&config("vllm", 8192, ""), &pair, &candidates);
    assert!(refused.instances.is_empty());
    let split = refused.considered.iter().find(|c| c.verdict.contains("2 stages with layers of their own"));
    assert!(split.is_some_and(|c| c.verdict.starts_with("split: ")), "{:#?}", refused.considered);
}

#[test]
fn stages_serve_where_tensor_parallelism_is_not_legal() {
    let card: Card = ("NVIDIA GeForce RTX 4080", 16_376, "8.9", None);
    let three = inventory(&[("a", &[card, card, card])]);
    let fp8 = qwen_32b().remove(1);
    let placement = run(&config("vllm", 4096, ""), &three, &weights("m", vec![fp8]));
    let placed = only(&placement);
    assert_eq!((placed.tensor_parallel, placed.pipeline_parallel, placed.accelerators.len()), (1, 3, 3));
    assert_eq!(placed.layers.iter().sum::<u32>(), 64);
    assert!(placed.because.contains("over 3 equal accelerators as stages of "), "{}", placed.because);
    within(placed);
}

#[test]
fn layers_go_to_host_memory_only_where_that_is_allowed() {
    let one = inventory(&[("a", &[CARD])]);
    let big = gguf(&llama_70b()[0], "Q4_K_M", 42_500_000_000);
    let allowed = config("llama.cpp", 4096, "place { allow offload=#true }");
    let refused = run(&config("llama.cpp", 4096, ""), &one, &weights("m", vec![big.clone()]));
    assert!(refused.instances.is_empty());
    assert!(refused.unplaced[0].nearest.contains("`allow offload=#true`: "), "{}", refused.unplaced[0].nearest);
    let placement = run(&allowed, &one, &weights("m", vec![big.clone()]));
    let placed = only(&placement);
    let [held] = placed.layers[..] else { panic!("{:?}", placed.layers) };
    assert!((30..=45).contains(&held), "{held}");
    within(placed);
    // One layer more would not have fitted.
    let memory = placed.per_accelerator[0];
    assert!(memory.total_bytes() + big.tensors.layer_bytes[0] > memory.capacity_bytes);
    let on_host = big.tensors.layer_bytes[0] * u64::from(80 - held);
    assert!(placed.host.weights_bytes > on_host, "{:?}", placed.host);
    let because = format!("with {held} of 80 layers on one accelerator and {} in host memory", 80 - held);
    assert!(placed.because.contains(&because), "{}", placed.because);

    // A model that crawls is no better than a lesser one that does not.
    let small = gguf(&llama_70b()[0], "Q2_K", 17_000_000_000);
    let both = run(&allowed, &one, &weights("m", vec![big.clone(), small.clone()]));
    assert_eq!((only(&both).candidate, only(&both).layers.len()), (1, 0));

    // Over two cards more layers are held, and where all fit none is in host memory.
    let two = inventory(&[("a", &[CARD, CARD])]);
    let all = run(&allowed, &two, &weights("m", vec![big.clone()]));
    assert_eq!((only(&all).layers.len(), only(&all).accelerators.len()), (0, 2));
    let larger = gguf(&llama_70b()[0], "Q6_K", 57_900_000_000);
    let part = run(&allowed, &two, &weights("m", vec![larger]));
    // One is as slow as two and costs less; both were looked at.
    assert_eq!((only(&part).layers.len(), only(&part).pipeline_parallel), (1, 1));
    let looked =
        |ranks: u32| part.considered.iter().any(|c| c.tensor_parallel == ranks && !c.verdict.starts_with("memory"));
    assert!(looked(2), "{:#?}", part.considered);
    within(only(&part));

    let mut poor = one.clone();
    poor.nodes[0].ram.available_bytes = Some(8 * GIB);
    let refused = run(&allowed, &poor, &weights("m", vec![big]));
    assert!(refused.considered.iter().any(|c| c.verdict.starts_with("ram: with ")), "{:#?}", refused.considered);
}

fn sees(mut variant: Variant, projector: u64) -> Variant {
    variant.tensors.projector_bytes = projector;
    variant.projector = Some(VariantFile { name: "mmproj-f16.gguf".to_owned(), size_bytes: Some(projector) });
    variant
}

#[test]
fn the_projector_lies_beside_the_layers_or_apart() {
    let parts = "part \"vision\" \"language\"";
    let model = sees(gguf(&qwen_32b()[0], "Q4_K_M", 21_900_000_000), GIB);
    let fast_and_slow = inventory(&[("a", &[("Tesla P40", 24_576, "6.1", None), R3090])]);
    // Without the word nothing is loaded.
    let plain = run(&config("llama.cpp", 2048, ""), &fast_and_slow, &weights("m", vec![model.clone()]));
    assert_eq!(only(&plain).vision, None);
    let told = "the vision projector mmproj-f16.gguf beside the weights is not loaded; write `part \"vision\"`";
    assert!(plain.notes.iter().any(|note| note.contains(told)), "{:?}", plain.notes);
    // Together they do not fit; apart, what is read for every token is where the memory is fast.
    let apart = run(&config("llama.cpp", 2048, parts), &fast_and_slow, &weights("m", vec![model.clone()]));
    let placed = only(&apart);
    assert_eq!(placed.accelerators, ["a#1", "a#0"], "{placed:?}");
    assert_eq!((placed.vision, placed.tensor_parallel, placed.pipeline_parallel), (Some(1), 1, 1));
    assert_eq!(placed.per_accelerator[1].weights_bytes, GIB);
    assert!(placed.because.contains("vision apart on P40"), "{}", placed.because);
    assert!(apart.notes.iter().all(|note| !note.contains("projector")), "{:?}", apart.notes);
    within(placed);
    // Nobody allowed that: they stay together, and do not fit.
    let together =
        run(&config("llama.cpp", 2048, "part \"vision\""), &fast_and_slow, &weights("m", vec![model.clone()]));
    assert_eq!(only(&together).vision, Some(0));
    assert_eq!(only(&together).layers.iter().sum::<u32>(), 64, "over both accelerators");
    let roomy = inventory(&[("a", &[A100])]);
    let beside = run(&config("llama.cpp", 2048, parts), &roomy, &weights("m", vec![model.clone()]));
    let without = run(&config("llama.cpp", 2048, ""), &roomy, &weights("m", vec![model]));
    assert_eq!(only(&beside).vision, Some(0));
    let bytes = |placement: &Placement| only(placement).per_accelerator[0].total_bytes();
    assert_eq!(bytes(&beside), bytes(&without) + 2 * GIB);
}

#[test]
fn parts_are_for_models_that_see_and_engines_that_can() {
    let parts = "part \"vision\" \"language\"";
    let one = inventory(&[("a", &[CARD])]);
    let blind = run(&config("vllm", 4096, parts), &one, &weights("m", vec![mistral_7b()]));
    assert!(blind.unplaced[0].reasons.iter().any(|r| r.text.contains("vision-language")), "{:#?}", blind.unplaced);
    let mut seeing = mistral_7b();
    seeing.architecture.vision_heads = Some(16);
    let kept = run(&config("vllm", 4096, parts), &one, &weights("m", vec![seeing]));
    assert_eq!((only(&kept).engine, only(&kept).vision), (EngineKind::Vllm, None));
    let said = kept.considered.iter().find(|c| c.verdict.contains("proxy process"));
    assert!(said.is_some_and(|c| c.verdict.contains("the parts stay together")), "{:#?}", kept.considered);
}
