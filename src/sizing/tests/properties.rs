//! Laws that hold for every model.

use proptest::prelude::*;

use super::*;

fn arbitrary_model() -> impl Strategy<Value = Variant> {
    (1u32..100, 1u32..64, 1u32..64, 1u32..513, 1u32..8192, 0u8..4).prop_map(|(layers, heads, kv, dim, window, kind)| {
        let mut variant = model(layers, heads * 64, heads, kv, dim, heads * 256, 32_000, 8 << 30);
        match kind {
            1 => {
                let layers = (0..layers).map(|layer| layer % 3 != 0).collect();
                variant.architecture.sliding = Some(Sliding { window, layers, head_dims: None });
            }
            2 => variant.architecture.mla = Some(Mla { kv_lora_rank: dim, qk_rope_head_dim: 64 }),
            3 => {
                let each = (0..layers).map(|layer| if layer % 4 == 3 { kv } else { 0 }).collect();
                variant.architecture.kv_heads = PerLayer::Each(each);
                variant.architecture.constant_state = Some(crate::weights::ConstantState {
                    layers: (0..layers).filter(|layer| layer % 4 != 3).count() as u32,
                    bytes_per_sequence: u64::from(window) * 64,
                    served_bytes_per_sequence: None,
                });
            }
            _ => {}
        }
        variant
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn more_context_or_sequences_never_need_less(
        variant in arbitrary_model(), context in 1u64..300_000, more in 0u64..100_000, sequences in 1u32..64, engine in 0..2,
    ) {
        let (engine, variant) = if engine == 0 { (EngineKind::LlamaCpp, gguf(variant)) } else { (EngineKind::Vllm, variant) };
        let demand = Demand { engine, context, concurrency: sequences, ..Demand::default() };
        let base = sized(&variant, &demand);
        for larger in [
            Demand { context: context + more, ..demand },
            Demand { concurrency: sequences + 1, ..demand },
        ] {
            let found = sized(&variant, &larger);
            prop_assert!(found.largest() >= base.largest());
            prop_assert!(found.host.total() >= base.host.total());
        }
    }

    #[test]
    fn more_bits_never_need_less(variant in arbitrary_model(), context in 1u64..100_000, engine in 0..2) {
        let (engine, variant) = if engine == 0 { (EngineKind::LlamaCpp, gguf(variant)) } else { (EngineKind::Vllm, variant) };
        // A block type holds whole blocks of 32, so that it is no saving for rows of fewer.
        let architecture = &variant.architecture;
        let row = architecture.mla.as_ref().map_or(architecture.head_dim_k, |mla| mla.kv_lora_rank);
        let types: &[Dtype] = match engine {
            EngineKind::LlamaCpp if row.is_multiple_of(32) => &[Dtype::Q4_0, Dtype::Q8_0, Dtype::F16, Dtype::F32],
            EngineKind::LlamaCpp => &[Dtype::F16, Dtype::F32],
            _ => &[Dtype::Fp8, Dtype::Bf16],
        };
        let demand = |dtype| Demand { engine, context, kv_dtype: Some(dtype), ..Demand::default() };
        let needs: Vec<u64> = types.iter().map(|dtype| sized(&variant, &demand(*dtype)).largest()).collect();
        prop_assert!(needs.is_sorted(), "{needs:?}");
        // And more bits of weights.
        let mut wider = variant.clone();
        wider.tensors.total_bytes *= 2;
        wider.tensors.layer_bytes.iter_mut().for_each(|bytes| *bytes *= 2);
        let plain = Demand { engine, context, ..Demand::default() };
        prop_assert!(sized(&wider, &plain).largest() >= sized(&variant, &plain).largest());
    }

    #[test]
    fn every_part_on_the_host_is_missing_on_the_device(variant in arbitrary_model(), context in 1u64..100_000, share in 0u32..100) {
        let variant = gguf(variant);
        let layers = variant.architecture.layers;
        let demand = llama_cpp(context);
        let part = |held: u32| offloaded_footprint(&variant, &demand, held).expect("a part");
        let (less, more) = (part(layers * share / 100), part(layers));
        prop_assert!(less.largest() <= more.largest());
        prop_assert!(less.host.total() >= more.host.total());
        let kv = |found: &Footprint| found.per_accelerator[0].kv_bytes + found.host.kv_bytes;
        prop_assert!(kv(&less).abs_diff(kv(&more)) <= u64::from(layers) * 8);
        prop_assert!(offloaded_footprint(&variant, &demand, layers + 1).is_err());
    }

    #[test]
    fn splitting_never_needs_more_per_accelerator_beyond_its_overhead(variant in arbitrary_model(), tp in 2u32..9) {
        let whole = one(&variant, &vllm(8192));
        let part = one(&variant, &with_tp(8192, tp));
        prop_assert!(part.kv_bytes <= whole.kv_bytes);
        let copies = 1u64 << 20;
        prop_assert!(part.weights_bytes <= whole.weights_bytes + copies);
    }

    #[test]
    fn extreme_numbers_never_panic(
        layers in 1u32..4096, hidden in any::<u32>(), heads in any::<u32>(), kv in any::<u32>(), dim in any::<u32>(),
        vocab in any::<u32>(), context in any::<u64>(), sequences in any::<u32>(), tp in 0u32..2000, pp in 0u32..2000,
    ) {
        let variant = model(layers, hidden, heads, kv, dim, hidden, vocab, u64::MAX / 2);
        for engine in [EngineKind::Vllm, EngineKind::LlamaCpp] {
            let variant = if engine == EngineKind::LlamaCpp { gguf(variant.clone()) } else { variant.clone() };
            let demand = Demand { engine, context, concurrency: sequences, tensor_parallel: tp, pipeline_parallel: pp, ..Demand::default() };
            let _ = footprint(&variant, &demand);
            let _ = offloaded_footprint(&variant, &demand, layers / 2);
            let _ = legal_splits(&variant, engine);
            let _ = adapter_reserve(&variant.architecture, sequences, tp);
            let _ = llama_buffers(&variant, &demand, &LlamaSetup { flash_attention: false, unified: false, ..LlamaSetup::default() });
            let accelerators = [parse_accelerator_request("2x24GiB").expect("readable")];
            let request = SizeRequest {
                context: Some(context), concurrency: sequences, tensor_parallel: tp, pipeline_parallel: pp,
                accelerators: &accelerators, ..SizeRequest::default()
            };
            let _ = size_report(&[variant], &request);
        }
    }
}
