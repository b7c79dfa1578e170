//! From KDL and an inventory to a placement: cases with known answers.

use crate::base::{GIB, MIB, Tree, TreeEntry};
use crate::config::{Desired, load};
use crate::inventory::{Hold, Inventory};
use crate::placement::*;
use crate::weights::{Architecture, PerLayer, Tensors, Variant};

pub(super) fn desired(text: &str) -> Desired {
    let head = "cluster \"lab\" { reserve ram=\"2GiB\" }\nengine \"vllm\" { path \"/opt/vllm/bin/vllm\" }\n\
                engine \"llama.cpp\" { path \"/opt/llama/llama-server\" }\n";
    let text = format!("{head}{text}");
    let mut tree = Tree::new();
    tree.insert("cluster.kdl", TreeEntry::File(text.into_bytes()));
    let loaded = load(&tree);
    assert!(loaded.desired.is_some(), "{:#?}", loaded.diagnostics);
    loaded.desired.unwrap()
}

/// Name, total MiB, compute capability, MIG parent.
pub(super) type Card = (&'static str, u64, &'static str, Option<&'static str>);

/// Nodes with their accelerators.
pub(super) fn inventory(nodes: &[(&str, &[Card])]) -> Inventory {
    let nodes: Vec<_> = nodes
        .iter()
        .map(|(name, accelerators)| {
            let accelerators: Vec<_> = accelerators
                .iter()
                .enumerate()
                .map(|(index, (kind, mib, capability, parent))| {
                    serde_json::json!({ "uuid": format!("{name}#{index}"), "index": index, "name": kind,
                        "memory": { "total_bytes": mib * MIB, "reserved_bytes": 0, "free_bytes": mib * MIB },
                        "compute_capability": capability, "mig_parent": parent })
                })
                .collect();
            serde_json::json!({ "name": name, "accelerators": accelerators,
                "ram": { "total_bytes": 128 * GIB, "available_bytes": 120 * GIB } })
        })
        .collect();
    serde_json::from_value(serde_json::json!({ "format": 1, "nodes": nodes })).unwrap()
}

/// A dense 16-bit model.
pub(super) fn dense(layers: u32, hidden: u32, kv_heads: u32, mlp: u32, vocab: u32, weights: u64) -> Variant {
    let embedding = u64::from(vocab) * u64::from(hidden) * 2;
    Variant {
        id: "bf16".to_owned(),
        quality: "bf16".parse().unwrap(),
        format: crate::base::WeightFormat::Safetensors,
        start_file: None,
        files: Vec::new(),
        download_bytes: weights,
        tensors: Tensors {
            total_bytes: weights,
            embedding_bytes: embedding,
            output_bytes: embedding,
            layer_bytes: vec![(weights - 2 * embedding) / u64::from(layers); layers as usize],
            parameters: weights / 2,
            exact: true,
            ..Tensors::default()
        },
        architecture: Architecture {
            name: "LlamaForCausalLM".to_owned(),
            layers,
            hidden,
            heads: PerLayer::All(32),
            kv_heads: PerLayer::All(kv_heads),
            head_dim_k: 128,
            head_dim_v: 128,
            intermediate: Some(mlp),
            moe_intermediate: None,
            experts: None,
            experts_per_token: None,
            vocab,
            trained_context: Some(131_072),
            tied: false,
            sliding: None,
            mla: None,
            constant_state: None,
            vision_heads: None,
            known: true,
        },
        quantisation: None,
        projector: None,
        notes: Vec::new(),
    }
}

pub(super) fn llama_8b() -> Variant {
    dense(32, 4096, 8, 14_336, 128_256, 16_060_522_496)
}

pub(super) fn mistral_7b() -> Variant {
    dense(32, 4096, 8, 14_336, 32_000, 14_483_464_192)
}

pub(super) fn weights(model: &str, variants: Vec<Variant>) -> Candidates {
    let list = variants
        .into_iter()
        .map(|variant| Candidate {
            label: variant.id.clone(),
            source: format!("path:{model}"),
            variant,
            revision: "sha256:0".to_owned(),
            files: Vec::new(),
            projector: None,
            origin: Origin::Controller { folder: "/models".to_owned() },
            gated: None,
        })
        .collect();
    Candidates::from([(model.to_owned(), Ok(list))])
}

pub(super) fn run(config: &str, inventory: &Inventory, candidates: &Candidates) -> Placement {
    let desired = desired(config);
    let (placement, problem) = place(&desired, inventory, candidates, &Options::default());
    assert_eq!(check(&problem, &placement), Vec::<String>::new());
    placement
}

pub(super) const CARD: Card = ("NVIDIA GeForce RTX 4090", 24_564, "8.9", None);

fn llama(context: u64, more: &str) -> String {
    format!(
        "node \"a\" address=\"10.0.0.1\"\nnode \"b\" address=\"10.0.0.2\"\n\
         model \"llama\" {{ source \"path:/llama\"; engine \"vllm\"; context {context}; {more} }}\n"
    )
}

#[test]
fn the_context_decides_where_a_model_fits() {
    let one = inventory(&[("a", &[CARD])]);
    let both = inventory(&[("a", &[CARD]), ("b", &[CARD, CARD])]);
    let candidates = weights("llama", vec![llama_8b()]);

    for more in ["", "kv-dtype \"fp8\""] {
        let refused = run(&llama(131_072, more), &one, &candidates);
        assert_eq!((refused.instances.len(), refused.solver.status.as_str()), (0, "infeasible"), "{more}");
        let unplaced = &refused.unplaced[0];
        assert!(unplaced.required);
        let reason = unplaced.reasons.iter().find(|r| r.node == "a").unwrap();
        assert_eq!((reason.constraint.as_str(), reason.unit.as_deref()), ("memory", Some("bytes")));
        assert!(reason.needed > reason.available, "{reason:?}");
        assert!(reason.text.contains("needs") && reason.text.contains("reserve"), "{}", reason.text);
        assert!(unplaced.nearest.contains("context"), "{}", unplaced.nearest);
        assert!(unplaced.reasons.iter().any(|r| r.node == "b" && r.constraint == "unreachable"));
    }

    let split = run(&llama(131_072, ""), &both, &candidates);
    assert_eq!(split.instances.len(), 1, "{:#?}", split.unplaced);
    let placed = &split.instances[0];
    assert_eq!((placed.node.as_str(), placed.tensor_parallel, placed.context), ("b", 2, 131_072));
    assert_eq!(placed.program, "/opt/vllm/bin/vllm");
    let kv = placed.per_accelerator[0].kv_bytes as f64 / GIB as f64;
    assert!((kv - 8.0).abs() < 0.08, "{kv}");

    let short = run(&llama(32_768, ""), &one, &candidates);
    assert_eq!(short.instances[0].accelerators, ["a#0"]);
}

#[test]
fn mig_slices_are_devices_of_their_own_and_never_work_together() {
    let slice = ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19_968, "8.0", Some("GPU-parent"));
    let slices = inventory(&[("a", &[slice, slice])]);
    let big = dense(40, 5120, 8, 13_824, 32_000, 20 * GIB);
    let config = "node \"a\" address=\"10.0.0.1\"\nmodel \"m\" { source \"path:/m\"; engine \"vllm\"; context 4096 }\n";
    let refused = run(config, &slices, &weights("m", vec![big]));
    assert!(refused.instances.is_empty());
    let reason = &refused.unplaced[0].reasons[0];
    assert_eq!(reason.constraint, "memory", "{reason:?}");
    assert!(refused.considered.iter().any(|c| c.verdict.contains("MIG slices")), "{:#?}", refused.considered);

    let fits = run(config, &slices, &weights("m", vec![mistral_7b()]));
    assert_eq!((fits.instances[0].accelerators.len(), fits.instances[0].tensor_parallel), (1, 1));
}

#[test]
fn unequal_accelerators_never_share_a_tensor_parallel_instance() {
    let mut pair = inventory(&[(
        "a",
        &[("NVIDIA GeForce RTX 3090", 24_576, "8.6", None), ("NVIDIA GeForce RTX 3070", 8_192, "8.6", None)],
    )]);
    let config = "node \"a\" address=\"10.0.0.1\"\nmodel \"m\" { source \"path:/m\"; engine \"vllm\"; context 8192 }\n";
    let candidates = weights("m", vec![mistral_7b()]);
    let single = run(config, &pair, &candidates);
    assert_eq!(single.instances[0].accelerators, ["a#0"]);

    pair.nodes[0].accelerators[0].memory.free_bytes = Some(12 * GIB);
    let refused = run(config, &pair, &candidates);
    assert!(refused.instances.is_empty());
    assert!(
        refused.unplaced[0].reasons[0].text.contains("12.0 GiB free now, less 256.0 MiB"),
        "{:?}",
        refused.unplaced[0].reasons
    );
}

#[test]
fn a_small_model_takes_the_small_accelerator_though_a_large_one_is_free() {
    let mixed = inventory(&[("a", &[("NVIDIA A100-SXM4-80GB", 81_920, "8.0", None)]), ("b", &[CARD, CARD])]);
    let placement = run(&llama(8_192, ""), &mixed, &weights("llama", vec![llama_8b()]));
    assert_eq!((placement.instances[0].node.as_str(), placement.instances[0].accelerators.len()), ("b", 1));
}

#[test]
fn what_runs_stays_where_it_is_and_its_memory_counts_as_usable() {
    let mut both = inventory(&[("a", &[CARD]), ("b", &[CARD, CARD])]);
    let card = &mut both.nodes[1].accelerators[1];
    card.memory.free_bytes = Some(2 * GIB);
    let process = serde_json::json!({ "pid": 7, "used_bytes": 21 * GIB, "ours": true });
    card.processes.push(serde_json::from_value(process).unwrap());
    let instance = serde_json::json!({ "instance": "abc", "specification": "sha256:0", "model": "llama", "replica": 2,
        "engine": "vllm", "variant": "bf16", "accelerators": ["b#1"], "port": 20000, "state": "ready", "running": true });
    both.nodes[1].instances.push(serde_json::from_value(instance).unwrap());
    let candidates = weights("llama", vec![llama_8b()]);
    let placement = run(&llama(16_384, "replicas min=1 max=2"), &both, &candidates);
    let places: Vec<_> =
        placement.instances.iter().map(|p| (p.replica, p.accelerators[0].as_str(), p.because.as_str())).collect();
    assert_eq!(places.len(), 2, "{:#?}", placement.unplaced);
    assert!(places.contains(&(2, "b#1", "already runs here")), "{places:?}");
    assert_eq!(places[0].0, 0);

    // A node that does not answer keeps what it runs, and nothing takes its place.
    both.nodes[1].reachable = false;
    let away = run(&llama(16_384, ""), &both, &candidates);
    assert_eq!(away.instances.len(), 1);
    assert_eq!((away.instances[0].node.as_str(), away.instances[0].replica), ("b", 2));
}

#[test]
fn refusals_name_the_constraint() {
    let one = inventory(&[("a", &[CARD])]);
    let candidates = weights("llama", vec![llama_8b()]);
    let word = |config: &str| {
        let placement = run(config, &one, &candidates);
        placement.unplaced[0].reasons.iter().find(|r| r.node == "a").map(|r| r.constraint.clone())
    };
    let place = "place { require label=\"tier\" is=\"datacenter\" }";
    assert_eq!(word(&llama(4096, place)).as_deref(), Some("selector"));
    assert_eq!(word(&llama(4096, "").replace("\"vllm\"; context", "\"sglang\"; context")).as_deref(), Some("engine"));
    let held = llama(4096, "").replace("address=\"10.0.0.1\"", "address=\"10.0.0.1\" { hold \"repair\" }");
    assert_eq!(word(&held).as_deref(), Some("hold"));
    let nearest = |inventory: &Inventory, config: &str| run(config, inventory, &candidates).unplaced[0].nearest.clone();
    assert!(nearest(&one, &held).contains("take `hold` off node `a`"), "{}", nearest(&one, &held));
    let mut cordoned = one.clone();
    cordoned.member.holds.push(Hold { node: "a".into(), reason: "new fan".into(), ..Hold::default() });
    let proposed = nearest(&cordoned, &llama(4096, ""));
    assert!(proposed.contains("flock uncordon a"), "{proposed}");
    assert_eq!(word(&llama(4096, "replicas max=2; place { spread by=\"node\" }")).as_deref(), Some("spread"));
    let nothing = Candidates::new();
    let placement = run(&llama(4096, ""), &one, &nothing);
    assert_eq!(placement.unplaced[0].reasons.last().map(|r| r.node.as_str()), Some("*"));
}

#[test]
fn llama_cpp_splits_layers_and_runs_on_the_cpu_only_where_allowed() {
    let mut gguf = llama_8b();
    gguf.id = "gguf:F16".to_owned();
    gguf.format = crate::base::WeightFormat::Gguf;
    gguf.start_file = Some("m.gguf".to_owned());
    let candidates = weights("llama", vec![gguf]);
    let llama_cpp = |more: &str, context: u64| {
        llama(context, more).replace("engine \"vllm\"; context", "engine \"llama.cpp\"; context")
    };
    let small = ("NVIDIA GeForce RTX 3080", 12_288, "8.6", None);
    let two = inventory(&[("a", &[small, small])]);
    let split = run(&llama_cpp("", 8192), &two, &candidates);
    let placed = &split.instances[0];
    assert_eq!((placed.pipeline_parallel, placed.tensor_parallel, placed.accelerators.len()), (2, 1, 2));

    let none = inventory(&[("a", &[])]);
    let refused = run(&llama_cpp("", 8192), &none, &candidates);
    assert!(refused.unplaced[0].nearest.contains("allow cpu"), "{}", refused.unplaced[0].nearest);
    assert_eq!(refused.unplaced[0].reasons[0].constraint, "accelerators");
    let cpu = run(&llama_cpp("place { allow cpu=#true }", 8192), &none, &candidates);
    assert!(cpu.instances[0].accelerators.is_empty() && cpu.instances[0].host.total_bytes() > 15 * GIB);
}

#[test]
fn the_order_in_which_facts_are_listed_does_not_matter() {
    let mut facts = inventory(&[("a", &[CARD]), ("b", &[CARD, CARD])]);
    let candidates = weights("llama", vec![llama_8b()]);
    let config = llama(16_384, "replicas min=1 max=3");
    let first = run(&config, &facts, &candidates);
    facts.nodes.reverse();
    facts.nodes[0].accelerators.reverse();
    assert_eq!(run(&config, &facts, &candidates), first);
}

#[test]
fn an_accelerator_that_is_cut_into_slices_takes_nothing_itself() {
    let whole = ("NVIDIA A100-PCIE-40GB", 40_960, "8.0", None);
    let slice = ("NVIDIA A100-PCIE-40GB MIG 3g.20gb", 19_968, "8.0", Some("a#0"));
    let cut = inventory(&[("a", &[whole, slice, slice])]);
    let config = "node \"a\" address=\"10.0.0.1\"\nmodel \"m\" { source \"path:/m\"; engine \"vllm\"; context 4096 }\n";
    let refused = run(config, &cut, &weights("m", vec![dense(40, 5120, 8, 13_824, 32_000, 20 * GIB)]));
    assert!(refused.instances.is_empty(), "{:?}", refused.instances);
    assert!(refused.unplaced[0].reasons[0].available < Some(20 * GIB), "{:?}", refused.unplaced);
    let fits = run(config, &cut, &weights("m", vec![mistral_7b()]));
    assert_ne!(fits.instances[0].accelerators, ["a#0"]);
}

/// A node whose accelerator uses the host's memory.
fn shared_pool(total: u64, available: u64) -> Inventory {
    let mut pool = inventory(&[("a", &[("NVIDIA GB10", 0, "12.1", None)])]);
    let node = &mut pool.nodes[0];
    (node.ram.total_bytes, node.ram.available_bytes) = (Some(total), Some(available));
    let memory = &mut node.accelerators[0].memory;
    (memory.total_bytes, memory.free_bytes, memory.unified) = (None, None, true);
    pool
}

#[test]
fn a_shared_pool_holds_accelerator_and_host_bytes() {
    let candidates = weights("llama", vec![llama_8b()]);
    let asked = |gib_tenths: u64| {
        let pool = shared_pool(120 * GIB, gib_tenths * GIB / 10);
        run(&llama(32_768, ""), &pool, &candidates)
    };
    // The least pool in which it fits; just below it the reason and the nearest change speak of the pool.
    let least = (150..400).find(|tenths| asked(*tenths).unplaced.is_empty()).unwrap();
    let refused = asked(least - 1);
    let reason = refused.unplaced[0].reasons.iter().find(|r| r.node == "a").unwrap();
    assert_eq!(reason.constraint, "memory");
    assert!(reason.needed > reason.available && reason.available > Some(0), "{reason:?}");
    assert!(reason.text.contains("accelerator and host share") && reason.text.contains("free now"), "{}", reason.text);
    let nearest = &refused.unplaced[0].nearest;
    let context = nearest.split_whitespace().nth(1).unwrap();
    let shorter =
        run(&llama(context.parse().unwrap(), ""), &shared_pool(120 * GIB, (least - 1) * GIB / 10), &candidates);
    assert!(shorter.unplaced.is_empty(), "{nearest}: {:?}", shorter.unplaced);
}

fn disk(inventory: &mut Inventory, free: u64) {
    let disk = serde_json::json!({ "path": "/", "total_bytes": 100 * GIB, "free_bytes": free });
    inventory.nodes[0].disks.push(serde_json::from_value(disk).unwrap());
}

#[test]
fn weights_of_which_only_the_index_is_there_need_disk_too() {
    let mut one = inventory(&[("a", &[CARD])]);
    disk(&mut one, 5 * GIB);
    let mut indexed = llama_8b();
    let file = |name: &str, size_bytes| crate::weights::VariantFile { name: name.to_owned(), size_bytes };
    indexed.files = vec![file("config.json", Some(900)), file("model-1.safetensors", None)];
    indexed.download_bytes = 900;
    let refused = run(&llama(4096, ""), &one, &weights("llama", vec![indexed]));
    let reason = refused.unplaced[0].reasons.iter().find(|r| r.node == "a").unwrap();
    assert_eq!((reason.constraint.as_str(), reason.needed), ("disk", Some(16_060_522_496)));
    assert!(refused.unplaced[0].nearest.contains("10.0 GiB more disk on a"), "{}", refused.unplaced[0].nearest);
}

#[test]
fn a_model_that_is_fast_enough_on_one_accelerator_takes_one() {
    let card = ("NVIDIA A100-SXM4-80GB", 81_920, "8.0", None);
    let two = inventory(&[("a", &[card, card])]);
    let large = dense(62, 5376, 16, 21_504, 262_144, 54 * GIB);
    let placement = run(&llama(32_768, ""), &two, &weights("llama", vec![large]));
    assert_eq!(placement.instances[0].accelerators.len(), 1, "{:?}", placement.instances);

    // Most layers look back over a short window only: a long context does not make them slow.
    let mut sliding = dense(62, 5376, 16, 21_504, 262_144, 54 * GIB);
    let layers = (0..62).map(|layer| layer % 6 != 5).collect();
    sliding.architecture.sliding = Some(crate::weights::Sliding { window: 1024, layers, head_dims: None });
    let placement = run(&llama(131_072, ""), &two, &weights("llama", vec![sliding]));
    assert_eq!(placement.instances[0].accelerators.len(), 1, "{:?}", placement.instances);
}

#[test]
fn a_capacity_is_explained_by_what_decides_on_it() {
    let candidates = weights("llama", vec![llama_8b()]);
    let text = |free: Option<u64>| {
        let mut one = inventory(&[("a", &[CARD])]);
        let memory = &mut one.nodes[0].accelerators[0].memory;
        (memory.free_bytes, memory.reserved_bytes) = (free, Some(400 * MIB));
        run(&llama(131_072, ""), &one, &candidates).unplaced[0].reasons[0].text.clone()
    };
    assert!(
        text(None).contains("(24.0 GiB less 1.9 GiB reserve and 400.0 MiB that the driver keeps)"),
        "{}",
        text(None)
    );
    let busy = text(Some(12 * GIB));
    assert!(busy.contains("usable is 11.8 GiB (12.0 GiB free now, less 256.0 MiB)"), "{busy}");
}

#[test]
fn the_nearest_change_is_about_what_is_short() {
    let one = inventory(&[("a", &[CARD])]);
    let candidates = weights("llama", vec![llama_8b()]);
    let nearest = |config: &str, inventory: &Inventory| {
        let placement = run(config, inventory, &candidates);
        assert!(placement.instances.is_empty(), "{:?}", placement.instances);
        placement.unplaced[0].nearest.clone()
    };
    let mut poor = one.clone();
    poor.nodes[0].ram.available_bytes = Some(5 * GIB);
    let text = nearest(&llama(4096, ""), &poor);
    assert!(text.contains("more host memory on a, or a smaller `reserve ram`"), "{text}");

    let old = inventory(&[("a", &[("Tesla V100-PCIE-32GB", 32_768, "7.0", None)])]);
    let text = nearest(&llama(4096, ""), &old);
    assert!(text.starts_with("an accelerator of compute capability 8.0 with "), "{text}");

    assert_eq!(nearest(&llama(200_000, "kv-dtype \"fp8\""), &one), {
        let text = nearest(&llama(131_072, "kv-dtype \"fp8\""), &one);
        text.replace("instead of 131072", "instead of 200000")
    });
    let large = inventory(&[("a", &[("NVIDIA A100-SXM4-80GB", 81_920, "8.0", None)])]);
    assert_eq!(nearest(&llama(200_000, ""), &large), "context 131072 or less");

    let tier = "place { require label=\"tier\" is=\"datacenter\" }";
    assert_eq!(nearest(&llama(4096, tier), &one), "the label `tier` set to `datacenter` on a");
    let tier = "place { require label=\"node\" is=\"b\" }";
    assert!(nearest(&llama(4096, tier), &one).contains("leave out `require"));
}
