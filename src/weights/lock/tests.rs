//! What is written is read again; what was written by others is not believed.

use proptest::prelude::*;

use super::*;
use crate::weights::samples::architecture;
use crate::weights::{ConstantState, Mla, Sliding};

fn file(name: &str, size_bytes: u64) -> LockedFile {
    LockedFile { name: name.to_owned(), size_bytes, sha256: "ab".repeat(32) }
}

fn variant(id: &str, quality: &str, files: Vec<LockedFile>) -> LockedVariant {
    LockedVariant {
        id: id.to_owned(),
        quality: quality.parse().expect("a quality"),
        format: WeightFormat::Safetensors,
        start_file: None,
        download_bytes: files.iter().map(|file| file.size_bytes).sum(),
        files,
        quantisation: None,
        tensors: Tensors { total_bytes: 100, layer_bytes: vec![10, 20], exact: true, ..Tensors::default() },
        architecture: architecture(2, 256, 4, 2),
        projector: None,
        notes: Vec::new(),
    }
}

fn source(repository: &str, variants: Vec<LockedVariant>) -> LockedSource {
    LockedSource {
        source: format!("hf:{repository}"),
        quantised_from: None,
        repository: repository.to_owned(),
        commit: "0123456789".repeat(4),
        license: Some("mit".to_owned()),
        gated: false,
        base_models: Vec::new(),
        variants,
    }
}

fn sample() -> Lock {
    let files = vec![file("config.json", 600), file("model.safetensors", 5000)];
    let coder = source("acme/coder", vec![variant("bf16", "bf16", files.clone())]);
    let mut awq = source("TheBloke/coder-AWQ", vec![variant("awq-int4", "awq-int4", files.clone())]);
    awq.quantised_from = Some("acme/coder".to_owned());
    awq.variants[0].quantisation = Some(Quantisation { method: "awq".to_owned(), bits: Some(4), block: Some(128) });
    let llava = source("acme/llava", vec![variant("f16", "f16", files)]);
    let owners = vec!["TheBloke".to_owned()];
    let coder = LockedModel { weights_from: owners, sources: vec![coder, awq] };
    let llava = LockedModel { weights_from: Vec::new(), sources: vec![llava] };
    Lock { models: BTreeMap::from([("coder".to_owned(), coder), ("llava".to_owned(), llava)]) }
}

#[test]
fn what_is_written_is_read_and_written_alike() {
    let lock = sample();
    let text = lock.render();
    assert_eq!(Lock::parse(&text).as_ref(), Ok(&lock), "{text}");
    assert_eq!(Lock::parse(&text).expect("read").render(), text);
    assert_eq!(Lock::parse("{ \"format\": 1, \"models\": {} }"), Ok(Lock::default()));
    assert_eq!(Lock::default().render(), "{\n  \"format\": 1,\n  \"models\": {}\n}\n");
}

/// A golden part: the layout is what people review.
#[test]
fn a_file_and_a_list_of_numbers_are_one_line_each() {
    let text = sample().render();
    let expected = r#"{
  "format": 1,
  "models": {
    "coder": {
      "weights_from": ["TheBloke"],
      "sources": [
        {
          "source": "hf:acme/coder",
          "repository": "acme/coder",
          "commit": "0123456789012345678901234567890123456789",
          "license": "mit",
          "gated": false,
          "variants": [
            {
              "id": "bf16",
              "quality": "bf16",
              "format": "safetensors",
              "download_bytes": 5600,
              "files": [
                { "name": "config.json", "size_bytes": 600, "sha256": "abababab"#;
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("                \"layer_bytes\": [10, 20],\n"), "{text}");
    assert!(text.contains("              \"quantisation\": { \"method\": \"awq\", \"bits\": 4, \"block\": 128 },\n"));
    assert!(text.contains("          \"quantised_from\": \"acme/coder\",\n"));
    assert!(!text.contains("null"), "what is not known is left out\n{text}");
    // The same network in a new revision: its commit, and the file that changed.
    let mut moved = sample();
    let coder = &mut moved.models.get_mut("coder").expect("it is there").sources[0];
    coder.commit = "f".repeat(40);
    coder.variants[0].files[0].sha256 = "cd".repeat(32);
    let after = moved.render();
    let differing = text.lines().zip(after.lines()).filter(|(a, b)| a != b).count();
    assert_eq!((differing, text.lines().count()), (2, after.lines().count()));
}

/// Each with the line it is refused at.
#[test]
fn what_flock_would_not_have_written_is_refused_at_its_line() {
    let text = sample().render();
    let line_of = |part: &str| text.lines().position(|line| line.contains(part)).expect("it is there") + 1;
    let file_line = line_of("model.safetensors");
    let cases: &[(&str, &str, &str, Option<usize>)] = &[
        ("\"config.json\"", "\"../config.json\"", "leaves its folder", Some(line_of("config.json"))),
        ("\"model.safetensors\"", "\"/etc/passwd\"", "is absolute", Some(file_line)),
        ("\"model.safetensors\"", "\"-rf.safetensors\"", "begins with a dot or a dash", Some(file_line)),
        ("\"model.safetensors\"", "\"a\\u001b[2Jb\"", "control character", Some(file_line)),
        ("\"model.safetensors\"", "\"a\u{9b}b\"", "control character", Some(file_line)),
        ("\"size_bytes\": 5000", "\"size_bytes\": -1", "negative", Some(file_line)),
        ("\"size_bytes\": 5000", "\"size_bytes\": 5e3", "no whole number", Some(file_line)),
        ("\"size_bytes\": 5000", "\"size_bytes\": 90000000000000", "more than any file", Some(file_line)),
        ("\"size_bytes\": 5000", "\"size_bytes\": 5001", "not the sum", None),
        ("\"config.json\"", "\"zzz.json\"", "not sorted", None),
        ("\"config.json\"", "\"model.safetensors\"", "not sorted", None),
        ("\"sha256\": \"ab", "\"sha256\": \"AB", "64 lowercase hex", None),
        ("\"sha256\": \"ab", "\"sha256\": \"sha256:ab", "64 lowercase hex", None),
        ("\"commit\": \"01", "\"commit\": \"main01", "40 lowercase hex", None),
        ("\"repository\": \"acme/coder\"", "\"repository\": \"acme/../x\"", "no repository", None),
        ("\"source\": \"hf:", "\"source\": \"path:", "no source on the hub", None),
        ("\"gated\": false", "\"gated\": \"no\"", "expected a boolean", Some(line_of("gated"))),
        ("\"gated\": false", "\"gated\": false, \"trusted\": true", "unknown field `trusted`", Some(line_of("gated"))),
        ("\"gated\": false", "\"gated\": false, \"gated\": true", "`gated` is there twice", Some(line_of("gated"))),
        ("\"llava\": {", "\"coder\": {", "`coder` is there twice", Some(line_of("\"llava\": {"))),
        ("\"id\": \"bf16\"", "\"id\": \"\"", "id is empty", None),
        ("\"quality\": \"bf16\"", "\"quality\": \"best\"", "unknown quality", Some(line_of("\"quality\": \"bf16\""))),
        ("\"layers\": 2", "\"layers\": 0", "without layers", None),
        ("\"layers\": 2", "\"layers\": 5000", "without layers", None),
        ("\"total_bytes\": 100", "\"total_bytes\": 29", "larger in parts", None),
        ("\"kv_heads\": 2", "\"kv_heads\": 0", "neither KV heads", None),
        ("\"format\": 1,", "\"format\": 2,", "reads format 1", Some(1)),
        ("\"format\": 1,", "", "does not say", Some(1)),
        ("    \"coder\": {", "<<<<<<< HEAD\n    \"coder\": {", "merge conflict", Some(line_of("\"coder\": {"))),
        ("\"sources\": [", "\"sources\": {", "", None),
    ];
    for (old, new, said, line) in cases {
        let broken = text.replacen(old, new, 1);
        assert_ne!(broken, text, "{old}");
        let error = Lock::parse(&broken).expect_err(new);
        assert!(error.message.contains(said), "{new}: {error:?}");
        assert!(line.is_none_or(|line| error.line == line), "{new}: {error:?}, not line {line:?}");
        assert!((1..=broken.lines().count() + 1).contains(&error.line) && !error.message.contains(" at line "));
    }
    for text in ["", "[]", "{", "null", "{\"format\": 1}", &"[".repeat(100_000)] {
        assert!(Lock::parse(text).is_err(), "{:?}", text.chars().take(20).collect::<String>());
    }
}

#[test]
fn quantisations_come_in_the_order_of_trust() {
    let variants = || vec![variant("awq-int4", "awq-int4", vec![file("m", 1)])];
    let of = |repository: &str| LockedSource {
        quantised_from: Some("acme/coder".to_owned()),
        ..source(repository, variants())
    };
    let model = LockedModel {
        weights_from: vec!["zeta".to_owned(), "Alpha".to_owned()],
        sources: vec![source("acme/coder", variants()), of("alpha/x"), of("alpha/w"), of("Zeta/y")],
    };
    let order: Vec<&str> =
        model.quantised(&model.weights_from).iter().map(|source| source.repository.as_str()).collect();
    assert_eq!(order, ["Zeta/y", "alpha/w", "alpha/x"]);
    assert_eq!(model.named().count(), 1);
    assert!(model.source("hf:acme/coder").is_some() && model.source("hf:alpha/x").is_none());
}

fn per_layer() -> impl Strategy<Value = PerLayer> {
    prop_oneof![any::<u32>().prop_map(PerLayer::All), proptest::collection::vec(1u32.., 1..5).prop_map(PerLayer::Each)]
}

fn architectures() -> impl Strategy<Value = Architecture> {
    let shapes = (1..=MAX_LAYERS, 1u32.., per_layer(), per_layer(), any::<[u32; 2]>(), any::<u32>());
    let extras = (
        any::<Option<u32>>(),
        any::<Option<u32>>(),
        any::<Option<u64>>(),
        any::<bool>(),
        proptest::option::of((any::<u32>(), proptest::collection::vec(any::<bool>(), 0..5))),
        any::<Option<(u32, u32)>>(),
        any::<(u32, u64)>(),
        "[ -~\u{e9}]{0,12}",
    );
    (shapes, extras).prop_map(|((layers, hidden, heads, kv_heads, dims, vocab), more)| {
        let (intermediate, experts, trained_context, tied, sliding, mla, state, name) = more;
        Architecture {
            name,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim_k: dims[0],
            head_dim_v: dims[1],
            intermediate,
            moe_intermediate: experts,
            experts,
            experts_per_token: intermediate,
            vocab,
            trained_context,
            tied,
            sliding: sliding.map(|(window, layers)| Sliding { window, layers, head_dims: Some((window, 8)) }),
            mla: mla.map(|(kv_lora_rank, qk_rope_head_dim)| Mla { kv_lora_rank, qk_rope_head_dim }),
            constant_state: Some(ConstantState {
                layers: state.0,
                bytes_per_sequence: state.1,
                served_bytes_per_sequence: Some(state.1),
            }),
            vision_heads: experts,
            known: tied,
        }
    })
}

prop_compose! {
    fn variants()(
        architecture in architectures(),
        parts in proptest::collection::vec(0u64..1 << 50, 0..9),
        files in proptest::collection::btree_map("[a-z]{1,4}(/[A-Z0-9_][A-Z0-9._-]{0,8}x)?", (0u64..1 << 40, any::<[u8; 32]>()), 1..6),
        quality in proptest::sample::select(vec!["f32", "bf16", "fp8", "int8", "Q6_K", "Q4_K_M", "IQ2_XS", "nvfp4"]),
        notes in proptest::collection::vec("[!-~]{1,40}", 0..3),
        block in any::<Option<u32>>(),
    ) -> LockedVariant {
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let files: Vec<LockedFile> = files.into_iter()
            .map(|(name, (size_bytes, digest))| LockedFile { name, size_bytes, sha256: hex(digest) })
            .collect();
        LockedVariant {
            id: format!("gguf:{quality}"),
            quality: quality.parse().expect("a quality"),
            format: WeightFormat::Gguf,
            start_file: files.first().map(|file| file.name.clone()),
            download_bytes: files.iter().map(|file| file.size_bytes).sum(),
            files,
            quantisation: Some(Quantisation { method: "gguf".to_owned(), bits: block, block }),
            tensors: Tensors { total_bytes: parts.iter().sum(), layer_bytes: parts, ..Tensors::default() },
            architecture,
            projector: None,
            notes,
        }
    }
}

proptest! {
    #[test]
    fn any_variant_survives(variants in proptest::collection::vec(variants(), 1..4), license in proptest::option::of("[ -~]{0,20}")) {
        let mut source = source("acme/coder", variants);
        source.license = license;
        let model = LockedModel { weights_from: vec!["a".to_owned()], sources: vec![source.clone()] };
        let lock = Lock { models: BTreeMap::from([("m".to_owned(), model)]) };
        let text = lock.render();
        let read = Lock::parse(&text);
        prop_assert_eq!(read.as_ref(), Ok(&lock), "{}", text);
        // The same through sizing's own type.
        for variant in &source.variants {
            let digests = variant.files.iter().map(|file| file.sha256.clone());
            let again = LockedVariant::new(variant.variant(), digests);
            prop_assert_eq!(again.as_ref(), Some(variant));
        }
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}\",: a-z0-9\\\\]{0,200}") {
        let _ = Lock::parse(&text);
    }
}
