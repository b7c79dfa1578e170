//! Folders of small weight files on a real disk.

use std::os::unix::fs::symlink;

use super::*;
use crate::weights::GgufWriter;

fn gguf(path: &Path, first: bool) -> u64 {
    let mut writer = GgufWriter::new("llama");
    if first {
        writer = writer
            .number("general.file_type", 15)
            .number("llama.block_count", 2)
            .number("llama.context_length", 8192)
            .number("llama.embedding_length", 256)
            .number("llama.feed_forward_length", 512)
            .number("llama.attention.head_count", 4)
            .number("llama.attention.head_count_kv", 2)
            .texts("tokenizer.ggml.tokens", 200_000)
            .tensor("token_embd.weight", &[256, 1000], 14)
            .tensor("blk.0.attn_q.weight", &[256, 256], 12);
    }
    let (bytes, size) = writer.tensor("blk.1.attn_q.weight", &[256, 256], 12).finish();
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    std::fs::write(path, bytes).expect("written");
    File::options().write(true).open(path).and_then(|file| file.set_len(size)).expect("stretched");
    size
}

async fn read(path: &Path, digests: bool) -> Result<Vec<LocalWeights>, FilesError> {
    DiskWeights::with_cache(None).read(path.to_str().expect("UTF-8"), digests).await
}

fn digest(path: &Path) -> Option<String> {
    Some(Digest::of(&std::fs::read(path).expect("there")).to_string())
}

#[tokio::test]
async fn hashing_that_takes_long_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    gguf(&path, true);
    File::options().write(true).open(&path).and_then(|file| file.set_len(256 << 20)).expect("stretched");
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = Arc::clone(&said);
    let tell = move |text: &str| listener.lock().expect("no panic").push(text.to_owned());
    let mut weights = DiskWeights::with_cache(None).telling(tell);
    weights.told = weights.told.map(|(_, notice)| (Duration::from_millis(1), notice));
    let path = path.to_str().expect("UTF-8");
    weights.read(path, false).await.expect("read");
    assert!(said.lock().expect("no panic").is_empty(), "nothing was hashed");
    weights.read(path, true).await.expect("read");
    let said = said.lock().expect("no panic");
    let (begin, end) = (format!("hashing the weights of {path}: "), " of 256.0 MiB");
    assert!(!said.is_empty() && said.iter().all(|one| one.starts_with(&begin) && one.ends_with(end)), "{said:?}");
}

#[tokio::test]
async fn a_gguf_file_is_one_variant_with_its_digest() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    let size = gguf(&path, true);
    gguf(&folder.path().join("other.gguf"), true);
    let found = read(&path, true).await.expect("weights");
    assert_eq!(found.len(), 1);
    assert_eq!(Path::new(&found[0].folder), folder.path());
    assert_eq!(found[0].variant.id, "gguf:Q4_K_M");
    let expected = FetchFile { name: "m.gguf".to_owned(), size_bytes: size, sha256: digest(&path) };
    assert_eq!(found[0].files, [expected]);
    assert_eq!(read(&path, false).await.expect("weights")[0].files[0].sha256, None);
}

#[tokio::test]
async fn a_shard_brings_the_others_and_links_are_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let blobs = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    gguf(&blobs.path().join("blob1"), true);
    gguf(&blobs.path().join("blob2"), false);
    symlink(blobs.path().join("blob1"), at("m-00001-of-00002.gguf")).expect("linked");
    symlink(blobs.path().join("blob2"), at("m-00002-of-00002.gguf")).expect("linked");
    gguf(&at("n-00002-of-00002.gguf"), false);
    symlink(folder.path(), at("circle")).expect("linked");
    symlink("nowhere", at("m-00003-of-00002.gguf")).expect("linked");
    let found = read(&at("m-00001-of-00002.gguf"), true).await.expect("weights");
    let names: Vec<&str> = found[0].files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
    assert_eq!(found[0].files[1].sha256, digest(&blobs.path().join("blob2")));
    assert_eq!(found[0].variant.start_file.as_deref(), Some("m-00001-of-00002.gguf"));
}

#[tokio::test]
async fn shards_that_only_an_index_names_have_no_size_and_no_digest() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 8192, "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    });
    let index = serde_json::json!({
        "metadata": { "total_size": 1_000_000 },
        "weight_map": {
            "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "lm_head.weight": "model-00002-of-00002.safetensors",
        },
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).expect("written");
    let found = read(folder.path(), true).await.expect("weights");
    let missing: Vec<&FetchFile> = found[0].files.iter().filter(|file| file.name.ends_with(".safetensors")).collect();
    assert_eq!(missing.len(), 2);
    assert!(missing.iter().all(|file| file.size_bytes == 0 && file.sha256.is_none()));
    let config_file = found[0].files.iter().find(|file| file.name == "config.json").expect("listed");
    assert_eq!(config_file.sha256, digest(&folder.path().join("config.json")));
}

#[test]
fn the_headers_of_a_set_are_bounded_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("m.gguf");
    gguf(&file, true);
    let size = std::fs::metadata(&file).expect("there").len();
    let listing = Listing::new([("m.gguf", size)]).expect("a listing");
    let read = |most| read_variants("m", folder.path(), &listing, most);
    assert_eq!(read(MAX_TOTAL).expect("read").len(), 1);
    let error = read(10).expect_err("too much").to_string();
    assert!(error.contains("longer than any model's"), "{error}");
}

#[tokio::test]
async fn what_is_no_weights_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    assert!(matches!(read(&at("nowhere"), true).await, Err(FilesError::Missing { .. })));
    assert!(matches!(read(folder.path(), true).await, Err(FilesError::NotWeights { .. })));
    std::fs::write(at("x.safetensors"), "x").expect("written");
    let error = read(&at("x.safetensors"), true).await.expect_err("no single file").to_string();
    assert!(error.contains("folder of safetensors"), "{error}");
    std::fs::write(at("x.gguf"), "GGUF and no more").expect("written");
    assert!(matches!(read(&at("x.gguf"), true).await, Err(FilesError::NotWeights { .. })));
    std::fs::write(at("evil\nname.gguf"), "x").expect("written");
    std::fs::create_dir_all(at("Q4 (it's)")).expect("made");
    gguf(&at("Q4 (it's)/m.gguf"), true);
    let found = read(folder.path(), true).await.expect("weights");
    assert_eq!(found[0].files[0].name, "Q4 (it's)/m.gguf");
}
