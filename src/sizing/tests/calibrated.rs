//! What was measured takes the place of what can only be bounded, and nothing is undercut.

use proptest::prelude::*;

use super::*;
use crate::inventory::{
    Accelerator as Device, Calibration, Inventory, MeasuredMemory, MeasuredParts, PlannedParts, SizedFor,
};

const KIND: &str = "NVIDIA H100 80GB HBM3 81559 MiB";
const RAN: Ran<'static> = Ran { revision: "sha256:1", accelerator: Some(KIND), layers: &[] };

/// A run of this demand in which every rank took these parts.
fn ran(demand: &Demand<'_>, parts: MeasuredParts) -> Calibration {
    let ranks = (demand.tensor_parallel * demand.pipeline_parallel) as usize;
    Calibration {
        model: "m".into(),
        variant: "bf16".into(),
        engine: demand.engine,
        sized_for: SizedFor {
            revision: "sha256:1".into(),
            engine_version: demand.version.map(str::to_owned),
            accelerator: Some(KIND.into()),
            kv_dtype: demand.kv_dtype,
            context: demand.context,
            concurrency: u64::from(demand.concurrency),
            per_accelerator: vec![PlannedParts::default(); ranks],
            layers: Vec::new(),
            host: PlannedParts::default(),
        },
        measured: MeasuredMemory { per_accelerator: vec![parts; ranks], ..MeasuredMemory::default() },
        at: String::new(),
    }
}

fn known(all: Vec<Calibration>) -> Calibrations {
    let node = NodeFacts { name: "a".into(), calibrations: all, ..NodeFacts::default() };
    Calibrations::of(&Inventory { format: 1, nodes: vec![node], ..Inventory::default() })
}

fn first(calibrations: &Calibrations, variant: &Variant, demand: &Demand<'_>) -> Figures {
    calibrations.footprint(variant, demand, RAN).expect("a legal demand").per_accelerator[0]
}

fn parts(weights: u64, kv: u64, used: u64) -> MeasuredParts {
    MeasuredParts { weights_bytes: Some(weights), kv_bytes: Some(kv), other_bytes: None, used_bytes: Some(used) }
}

#[test]
fn a_measured_headroom_replaces_the_bound_with_a_margin() {
    let model = llama_31_8b();
    let demand = vllm(8192);
    let estimate = one(&model, &demand);
    // Less than the bound was really taken: the rest is free from now on, but for the margin.
    let used = estimate.weights_bytes + estimate.kv_bytes + 900 * MIB;
    let calibrations = known(vec![ran(&demand, parts(estimate.weights_bytes, estimate.kv_bytes, used))]);
    let needed = first(&calibrations, &model, &demand);
    assert_eq!((needed.weights_bytes, needed.kv_bytes), (estimate.weights_bytes, estimate.kv_bytes));
    assert_eq!(needed.overhead_bytes, 900 * MIB + CALIBRATION_MARGIN);
    assert!(needed.overhead_bytes < estimate.overhead_bytes);
    // A tenth, where that is more.
    let used = used + 1100 * MIB;
    let larger = known(vec![ran(&demand, parts(estimate.weights_bytes, estimate.kv_bytes, used))]);
    assert_eq!(first(&larger, &model, &demand).overhead_bytes, 2200 * MIB);
    // More context adds its KV cache as computed; more requests their graphs and logits.
    let long = first(&calibrations, &model, &vllm(65_536));
    assert_eq!(long.kv_bytes, one(&model, &vllm(65_536)).kv_bytes);
    let many = Demand { concurrency: 64, ..demand };
    let more = one(&model, &many).overhead_bytes - estimate.overhead_bytes;
    assert_eq!(first(&calibrations, &model, &many).overhead_bytes, 900 * MIB + CALIBRATION_MARGIN + more);
}

#[test]
fn an_estimate_that_was_too_low_is_raised_for_every_demand() {
    let model = llama_31_8b();
    let demand = vllm(8192);
    let estimate = one(&model, &demand);
    let used = estimate.total() + 3 * GIB;
    let weights = estimate.weights_bytes + GIB;
    let calibrations = known(vec![ran(&demand, parts(weights, estimate.kv_bytes, used))]);
    let needed = first(&calibrations, &model, &demand);
    assert!(needed.total() >= used && needed.weights_bytes == weights);
    assert!(first(&calibrations, &model, &vllm(4096)).total() > one(&model, &vllm(4096)).total());
    // The cache held half of the tokens that were asked for: a token costs twice as much.
    let mut short = ran(&demand, parts(estimate.weights_bytes, estimate.kv_bytes, estimate.total()));
    short.measured.kv_tokens = Some(4096);
    let short = known(vec![short]);
    assert_eq!(first(&short, &model, &demand).kv_bytes, 2 * estimate.kv_bytes);
    let long = one(&model, &vllm(16_384));
    assert_eq!(first(&short, &model, &vllm(16_384)).kv_bytes, 2 * long.kv_bytes);
    // A figure that only lacks its rounding is none.
    let mut rounded = ran(&demand, parts(estimate.weights_bytes, estimate.kv_bytes, estimate.total()));
    rounded.measured.kv_tokens = Some(8150);
    assert_eq!(first(&known(vec![rounded]), &model, &demand).kv_bytes, estimate.kv_bytes);
}

#[test]
fn what_only_the_log_tells_raises_and_never_lowers() {
    let model = gguf(llama_31_8b());
    let demand = llama_cpp(8192);
    let estimate = first(&Calibrations::default(), &model, &demand);
    let log = |other: u64| MeasuredParts {
        weights_bytes: Some(estimate.weights_bytes),
        kv_bytes: Some(estimate.kv_bytes),
        other_bytes: Some(other),
        used_bytes: None,
    };
    let low = known(vec![ran(&demand, log(1))]);
    assert_eq!(first(&low, &model, &demand), estimate);
    let high = known(vec![ran(&demand, log(estimate.overhead_bytes + GIB))]);
    assert!(first(&high, &model, &demand).overhead_bytes > estimate.overhead_bytes + GIB);
    // A node that says less in all than its weights and cache alone says nothing of the rest, and lowers nothing.
    for used in [0, estimate.weights_bytes + estimate.kv_bytes] {
        let absurd = MeasuredParts { used_bytes: Some(used), ..log(1) };
        assert_eq!(first(&known(vec![ran(&demand, absurd)]), &model, &demand), estimate);
    }
    // Host memory is taken as the process works: what it was at its start lowers nothing.
    let mut host = ran(&demand, log(1));
    host.measured.host.used_bytes = Some(1);
    let plain = footprint(&model, &demand).expect("legal").host;
    let found = |host: Calibration| known(vec![host]).footprint(&model, &demand, RAN).expect("legal").host;
    assert_eq!(found(host.clone()), plain);
    host.measured.host.used_bytes = Some(plain.total() + GIB);
    assert!(found(host).total() > plain.total() + GIB);
}

#[test]
fn only_the_same_counts_and_on_every_node_of_the_kind() {
    let model = llama_31_8b();
    let demand = Demand { version: Some("0.11.0"), ..vllm(8192) };
    let estimate = one(&model, &demand);
    let full = parts(estimate.weights_bytes, estimate.kv_bytes, estimate.total() + GIB);
    let run = ran(&demand, full);
    let calibrations = known(vec![run.clone()]);
    let count = |ran: Ran<'_>, demand: &Demand<'_>| calibrations.like(ran, demand).count();
    assert_eq!(count(RAN, &demand), 1);
    assert_eq!(count(RAN, &Demand { context: 1, concurrency: 9, ..demand }), 1);
    assert_eq!(count(Ran { revision: "sha256:2", ..RAN }, &demand), 0);
    assert_eq!(count(Ran { accelerator: Some("x"), ..RAN }, &demand), 0);
    assert_eq!(count(Ran { layers: &[20, 12], ..RAN }, &demand), 0);
    for other in [
        Demand { version: Some("0.11.1"), ..demand },
        Demand { version: None, ..demand },
        Demand { kv_dtype: Some(Dtype::Fp8), ..demand },
        Demand { tensor_parallel: 2, ..demand },
        Demand { cpu: true, ..demand },
        Demand { engine: EngineKind::Sglang, ..demand },
    ] {
        assert_eq!(count(RAN, &other), 0, "{other:?}");
    }
    assert!(calibrations.exact(RAN, &demand).is_some());
    assert!(calibrations.exact(RAN, &Demand { context: 4096, ..demand }).is_none());
    // A run that left layers on the CPU held less than one that does not.
    let mut spilled = run;
    spilled.measured.offloaded_layers = Some([30, 33]);
    assert_eq!(known(vec![spilled]).like(RAN, &demand).count(), 0);
}

#[test]
fn an_under_estimate_is_more_than_rounding() {
    let mut run = ran(&vllm(8192), parts(0, 0, 101 * GIB));
    run.sized_for.per_accelerator = vec![PlannedParts { weights_bytes: 100 * GIB, ..PlannedParts::default() }];
    assert_eq!(under_estimate(&run), None);
    run.measured.per_accelerator[0].used_bytes = Some(102 * GIB);
    assert_eq!(under_estimate(&run), Some((100 * GIB, 102 * GIB)));
    let device = Device {
        name: "NVIDIA H100 80GB HBM3".into(),
        memory: AcceleratorMemory { total_bytes: Some(81_559 * MIB), ..AcceleratorMemory::default() },
        ..Device::default()
    };
    assert_eq!(accelerator_kind(&device, &NodeFacts::default()), KIND);
}

prop_compose! {
    fn arbitrary_run()(
        context in 256u64..100_000, concurrency in 1u32..64, weights in 0u64..40, kv in 0u64..40, used in 0u64..90,
        told in any::<(bool, bool, bool)>(), tokens in proptest::option::of(1u64..10_000_000),
    ) -> Calibration {
        let demand = Demand { concurrency, ..vllm(context) };
        let some = |told: bool, gib: u64| told.then_some(gib * GIB + 12_345);
        let mut run = ran(&demand, MeasuredParts {
            weights_bytes: some(told.0, weights), kv_bytes: some(told.1, kv), other_bytes: some(!told.2, used / 8),
            used_bytes: some(told.2, used),
        });
        run.measured.kv_tokens = tokens;
        run
    }
}

proptest! {
    #[test]
    fn never_below_what_was_measured_and_never_less_for_more(
        runs in proptest::collection::vec(arbitrary_run(), 1..5), context in 256u64..120_000, more in 1u64..50_000,
        concurrency in 1u32..80,
    ) {
        let model = llama_31_8b();
        let calibrations = known(runs.clone());
        for run in &runs {
            let demand = Demand { concurrency: run.sized_for.concurrency as u32, ..vllm(run.sized_for.context) };
            let needed = first(&calibrations, &model, &demand);
            let measured = run.measured.per_accelerator[0];
            prop_assert!(needed.total() >= measured.total().unwrap_or(0));
            prop_assert!(needed.weights_bytes >= measured.weights_bytes.unwrap_or(0));
            prop_assert!(needed.kv_bytes >= measured.kv_bytes.unwrap_or(0));
        }
        let base = Demand { concurrency, ..vllm(context) };
        let needed = first(&calibrations, &model, &base);
        let exact = one(&model, &base);
        prop_assert!(needed.weights_bytes >= exact.weights_bytes && needed.kv_bytes >= exact.kv_bytes);
        for larger in [Demand { context: context + more, ..base }, Demand { concurrency: concurrency + 1, ..base }] {
            prop_assert!(first(&calibrations, &model, &larger).total() >= needed.total());
        }
    }

    #[test]
    fn no_record_panics_or_overflows(
        context in any::<u64>(), concurrency in any::<u64>(), figures in any::<[Option<u64>; 4]>(), tokens in any::<Option<u64>>(),
    ) {
        let model = llama_31_8b();
        let [weights_bytes, kv_bytes, other_bytes, used_bytes] = figures;
        let mut run = ran(&vllm(8192), MeasuredParts { weights_bytes, kv_bytes, other_bytes, used_bytes });
        (run.sized_for.context, run.sized_for.concurrency, run.measured.kv_tokens) = (context, concurrency, tokens);
        run.measured.host = run.measured.per_accelerator[0];
        let _ = (under_estimate(&run), run.totals());
        let calibrations = known(vec![run]);
        let found = calibrations.footprint(&model, &vllm(8192), RAN).expect("a legal demand");
        prop_assert!(found.largest() <= 1 << 50 && found.host.total() <= 1 << 50);
    }
}
