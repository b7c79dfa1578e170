//! A hub in memory, which may lie as no honest stand-in does.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::io::AsyncRead;

use super::*;
use crate::base::{Secret, Tree, TreeEntry};
use crate::config;
use crate::ports::{HubError, HubFile, HubRepository};
use crate::weights::{SafetensorsWriter, Tensors, one_layer_gguf};

/// Files by name: their first bytes, and how many there are in all.
type Files = BTreeMap<String, (Vec<u8>, u64)>;

#[derive(Default)]
struct MemoryHub {
    repositories: BTreeMap<String, (HubRepository, Files)>,
    /// What is listed as quantised, whoever asks.
    listed: Vec<String>,
    /// Most bytes of one answer.
    at_most: Option<usize>,
    running: AtomicUsize,
    most_running: AtomicUsize,
    reads: Mutex<Vec<(String, u64, u64)>>,
}

const DIGEST: &str = "sha256:abababababababababababababababababababababababababababababababab";

impl MemoryHub {
    fn add(&mut self, name: &str, files: Vec<(&str, Vec<u8>, u64)>) -> &mut HubRepository {
        let large = |name: &str| (name.ends_with(".safetensors") || name.ends_with(".gguf")).then(|| DIGEST.to_owned());
        let listed = |(name, _, size): &(&str, Vec<u8>, u64)| HubFile {
            name: (*name).to_owned(),
            size_bytes: *size,
            sha256: large(name),
        };
        let repository = HubRepository {
            repository: name.to_owned(),
            commit: "c".repeat(40),
            gated: false,
            license: Some("mit\u{1b}[2J\n".to_owned()),
            base_models: vec!["acme/base".to_owned(), "../x".to_owned()],
            files: files.iter().map(listed).collect(),
        };
        let files = files.into_iter().map(|(name, bytes, size)| (name.to_owned(), (bytes, size))).collect();
        &mut self.repositories.entry(name.to_owned()).or_insert((repository, files)).0
    }

    /// A model of a few shards.
    fn model(&mut self, name: &str, layers: u32, shards: u32) -> &mut HubRepository {
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": layers,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 8192,
        });
        let config = config.to_string().into_bytes();
        let names: Vec<String> = (1..=shards).map(|n| format!("model-{n:05}-of-{shards:05}.safetensors")).collect();
        let mut files = vec![("config.json", config.clone(), config.len() as u64)];
        for (number, name) in names.iter().enumerate() {
            let tensor = format!("model.layers.{number}.mlp.up_proj.weight");
            let (bytes, size) = SafetensorsWriter::new().tensor(&tensor, &[512, 256], "BF16").finish();
            files.push((name, bytes, size));
        }
        self.add(name, files)
    }
}

#[async_trait]
impl Hub for MemoryHub {
    fn endpoint(&self) -> &str {
        "memory"
    }
    fn token(&self) -> Option<Secret<String>> {
        None
    }
    async fn repository(&self, repository: &str, _: Option<&str>) -> Result<HubRepository, HubError> {
        let found = self.repositories.get(repository).map(|(found, _)| found.clone());
        found.ok_or_else(|| HubError::NoRepository { repository: repository.to_owned() })
    }
    async fn read(&self, name: &str, _: &str, file: &str, offset: u64, length: u64) -> Result<Vec<u8>, HubError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.reads.lock().expect("free").push((file.to_owned(), offset, length));
        let known = self.repositories.values().find(|(found, _)| found.repository == name).expect("known");
        let (bytes, size) = &known.1[file];
        assert!(offset + length <= *size, "{file}: {offset} + {length} of {size}");
        let end = (offset + length).min(bytes.len() as u64).max(offset) as usize;
        let answer = bytes.get(offset as usize..end).unwrap_or_default();
        Ok(answer[..answer.len().min(self.at_most.unwrap_or(usize::MAX))].to_vec())
    }
    async fn open(&self, _: &str, _: &str, _: &str, _: u64) -> Result<Box<dyn AsyncRead + Send + Unpin>, HubError> {
        unreachable!("no weights are read for a lock")
    }
    async fn quantised_by(&self, _: &str, _: &str) -> Result<Vec<String>, HubError> {
        Ok(self.listed.clone())
    }
}

fn desired(model: &str) -> Desired {
    let text = format!("cluster \"lab\"\nnode \"one\" address=\"10.0.0.1\"\nmodel \"m\" {{ {model} }}\n");
    let mut tree = Tree::new();
    tree.insert("cluster.kdl", TreeEntry::File(text.into_bytes()));
    let loaded = config::load(&tree);
    loaded.desired.unwrap_or_else(|| panic!("{:#?}", loaded.diagnostics))
}

async fn locked(hub: &MemoryHub, model: &str) -> Relocked {
    relock(&desired(model), &Lock::default(), &Update::Missing, hub, &|_| {}).await
}

fn texts(relocked: &Relocked) -> Vec<&str> {
    relocked.findings.iter().map(|found| found.message.as_str()).collect()
}

#[tokio::test]
async fn an_answer_about_other_owners_is_not_believed() {
    let mut hub = MemoryHub::default();
    hub.model("acme/base", 2, 2);
    hub.model("trusted/one", 2, 2);
    hub.model("stranger/two", 2, 2);
    hub.model("trusted/gone", 2, 2).repository = "stranger/gone".to_owned();
    for name in ["trusted/one", "stranger/two", "trusted/gone", "trusted/one", "acme/base", "trustedx/y", "trusted"] {
        hub.listed.push(name.to_owned());
    }
    let relocked = locked(&hub, "source \"hf:acme/base\"; weights-from \"Trusted\"").await;
    let found: Vec<&str> = relocked.lock.models["m"].sources.iter().map(|s| s.repository.as_str()).collect();
    assert_eq!(found, ["acme/base", "trusted/one"], "{relocked:#?}");
    assert_eq!(
        texts(&relocked),
        ["model `m`: left out: trusted/gone is called stranger/gone now, which is another owner's"]
    );
    // What a card says reaches a file that people look at.
    let base = &relocked.lock.models["m"].sources[0];
    assert_eq!(
        (base.license.as_deref(), base.base_models.as_slice()),
        (Some("mit?[2J"), &["acme/base".to_owned()][..])
    );
    let text = relocked.lock.render();
    assert_eq!(Lock::parse(&text).as_ref(), Ok(&relocked.lock), "{text}");
}

#[tokio::test]
async fn headers_are_read_together_and_nothing_else() {
    let mut hub = MemoryHub::default();
    hub.model("acme/base", 20, 20);
    let relocked = locked(&hub, "source \"hf:acme/base\"").await;
    assert_eq!(relocked.lock.models["m"].sources[0].variants[0].tensors.layer_bytes.len(), 20);
    let reads = hub.reads.lock().expect("free").clone();
    // The configuration for its fields and for its digest, each shard's header once.
    assert_eq!(reads.len(), 2 + 20, "{reads:?}");
    let most = hub.most_running.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most} at once");

    // The same where answers come in pieces.
    let whole = relocked.lock;
    let mut hub = MemoryHub { at_most: Some(50), ..MemoryHub::default() };
    hub.model("acme/base", 20, 20);
    assert_eq!(locked(&hub, "source \"hf:acme/base\"").await.lock, whole);
}

#[tokio::test]
async fn files_that_cannot_be_pinned_are_refused_by_name() {
    let mut hub = MemoryHub::default();
    let unpinned = |hub: &mut MemoryHub, change: fn(&mut HubFile)| {
        hub.repositories.clear();
        hub.model("acme/base", 2, 2).files.iter_mut().filter(|f| f.name.starts_with("model-00002")).for_each(change);
    };
    for (change, said) in [
        ((|file| file.sha256 = Some("sha256:no".to_owned())) as fn(&mut HubFile), "has a digest that is none"),
        (|file| (file.sha256, file.size_bytes) = (None, 1 << 40), "too large to be read"),
        (|file| file.name = "other.bin".to_owned(), "1 of 2 shards"),
    ] {
        unpinned(&mut hub, change);
        let relocked = locked(&hub, "source \"hf:acme/base\"").await;
        assert!(texts(&relocked)[0].contains(said), "{said}: {:?}", relocked.findings);
        assert!(relocked.models[0].failed && relocked.lock.models.is_empty());
        assert!(relocked.findings[0].hint.is_some());
    }
    // What the reader would refuse is not written.
    hub.repositories.clear();
    hub.model("acme/base", 2, 2).files[1].size_bytes = 1 << 50;
    let (_, files) = hub.repositories.get_mut("acme/base").expect("it was added");
    files.get_mut("model-00001-of-00002.safetensors").expect("a shard").1 = 1 << 50;
    let relocked = locked(&hub, "source \"hf:acme/base\"").await;
    assert!(texts(&relocked)[0].contains("acme/base cannot be pinned: 1125899906842624 bytes, more than any file has"));
    // An index whose files are not there: fine for a size, nothing that could be downloaded.
    let index = serde_json::json!({ "metadata": { "total_size": 1000 }, "weight_map": { "a": "model-1.safetensors" } });
    let index = index.to_string().into_bytes();
    let length = index.len() as u64;
    hub.repositories.clear();
    hub.model("acme/base", 2, 0);
    let config = hub.repositories["acme/base"].1["config.json"].clone();
    hub.repositories.clear();
    hub.add("acme/base", vec![("config.json", config.0, config.1), ("model.safetensors.index.json", index, length)]);
    let relocked = locked(&hub, "source \"hf:acme/base\"").await;
    assert_eq!(texts(&relocked), ["model `m`: acme/base: model-1.safetensors is named by the index and not there"]);
    let found = crate::reconcile::look_on_hub(&hub, "acme/base", None, None).await.expect("sized");
    assert!(matches!(&found.variants[0].tensors, Tensors { exact: false, total_bytes: 1000, .. }));
}

/// A bad pin is never the price of a good one: the other sources of the model do not count either.
#[tokio::test]
async fn a_model_is_pinned_whole_or_not_at_all() {
    let mut hub = MemoryHub::default();
    hub.model("acme/base", 2, 2);
    let relocked = locked(&hub, "variant \"a\" source=\"hf:acme/base\"; variant \"b\" source=\"hf:acme/none\"").await;
    assert!(relocked.models[0].failed && relocked.models[0].is.is_none() && relocked.lock.models.is_empty());
    assert_eq!(texts(&relocked), ["model `m`: acme/none: there is no such repository"]);
}

/// Whoever may change the lock in a pull request does not choose whose weights run.
#[tokio::test]
async fn a_lock_brings_no_weights_that_the_config_does_not_name() {
    let mut hub = MemoryHub::default();
    for name in ["acme/base", "trusted/one", "stranger/two"] {
        hub.model(name, 2, 2);
    }
    hub.listed.push("trusted/one".to_owned());
    let config = "source \"hf:acme/base\"; weights-from \"Trusted\"";
    let good = locked(&hub, config).await.lock;
    assert!(crate::reconcile::check_lock(&desired(config), &good).is_empty());
    let stranger = locked(&hub, "source \"hf:stranger/two\"").await.lock.models["m"].sources[0].clone();
    type Change = fn(&mut Vec<LockedSource>, LockedSource);
    let cases: [(&str, Change, &str); 3] = [
        (
            config,
            |sources, stranger| {
                sources.push(LockedSource { quantised_from: Some("acme/base".to_owned()), ..stranger });
            },
            "does not trust its owner",
        ),
        (
            "source \"hf:acme/base\"",
            |sources, stranger| {
                sources[1] = LockedSource { quantised_from: Some("acme/base".to_owned()), ..stranger };
            },
            "does not trust its owner",
        ),
        (config, |sources, _| sources[1].quantised_from = Some("acme/other".to_owned()), "of something else"),
    ];
    for (config, change, said) in cases {
        let mut bad = good.clone();
        let model = bad.models.get_mut("m").expect("locked");
        if config.contains("weights-from") {
            change(&mut model.sources, stranger.clone());
        } else {
            model.weights_from.clear();
            change(&mut model.sources, stranger.clone());
        }
        let found = crate::reconcile::check_lock(&desired(config), &bad);
        assert!(found[0].message.contains(said) && found[0].severity == crate::base::Severity::Error, "{found:#?}");
        // And `flock lock` puts it right.
        let again = relock(&desired(config), &bad, &Update::Missing, &hub, &|_| {}).await.lock;
        assert!(crate::reconcile::check_lock(&desired(config), &again).is_empty(), "{again:#?}");
    }
    // Another repository under the name that the config has: the hub forwards old names, so of the same owner it is said
    // and not refused.
    let mut other = good.clone();
    other.models.get_mut("m").expect("locked").sources[0].repository = "stranger/two".to_owned();
    other.models.get_mut("m").expect("locked").sources.truncate(1);
    let found = crate::reconcile::check_lock(&desired(config), &other);
    assert!(found[0].message.contains("stranger/two for acme/base: another owner's"), "{found:#?}");
    assert_eq!(found[0].severity, crate::base::Severity::Error);
    other.models.get_mut("m").expect("locked").sources[0].repository = "acme/two".to_owned();
    let found = crate::reconcile::check_lock(&desired(config), &other);
    assert!(found[0].message.contains("weights of acme/two for acme/base"), "{found:#?}");
    assert_eq!(found[0].severity, crate::base::Severity::Warning);
    // Another commit than the one that the config names.
    let pinned = format!("source \"hf:acme/base@{}\"", "c".repeat(40));
    let mut moved = locked(&hub, &pinned).await.lock;
    moved.models.get_mut("m").expect("locked").sources[0].commit = "d".repeat(40);
    let found = crate::reconcile::check_lock(&desired(&pinned), &moved);
    assert!(found[0].message.contains("at commit dddd"), "{found:#?}");
    let again = relock(&desired(&pinned), &moved, &Update::Missing, &hub, &|_| {}).await.lock;
    assert_eq!(again.models["m"].sources[0].commit, "c".repeat(40));
}

#[tokio::test]
async fn a_file_keeps_its_id_whatever_comes_beside_it() {
    let hub_with = |names: &[&str]| {
        let mut hub = MemoryHub::default();
        let files = names.iter().map(|name| {
            let (bytes, size) = one_layer_gguf();
            (*name, bytes, size)
        });
        hub.add("acme/gguf", files.collect());
        hub
    };
    let wanted = desired("source \"hf:acme/gguf\"");
    let ids = |relocked: &Relocked| -> Vec<(String, String)> {
        let variants = &relocked.lock.models["m"].sources[0].variants;
        variants.iter().map(|one| (one.start_file.clone().unwrap_or_default(), one.id.clone())).collect()
    };
    let alone = locked(&hub_with(&["b.gguf"]), "source \"hf:acme/gguf\"").await;
    assert_eq!(ids(&alone), [("b.gguf".to_owned(), "gguf:Q4_K_M".to_owned())]);
    let two = hub_with(&["a.gguf", "b.gguf"]);
    let both = relock(&wanted, &alone.lock, &Update::All, &two, &|_| {}).await;
    let expected = [("a.gguf", "gguf:Q4_K_M:a"), ("b.gguf", "gguf:Q4_K_M")];
    assert_eq!(ids(&both), expected.map(|(file, id)| (file.to_owned(), id.to_owned())));
    let left = relock(&wanted, &both.lock, &Update::All, &hub_with(&["a.gguf"]), &|_| {}).await;
    assert_eq!(ids(&left), [("a.gguf".to_owned(), "gguf:Q4_K_M:a".to_owned())]);
    assert!(Lock::parse(&left.lock.render()).is_ok() && Lock::parse(&both.lock.render()).is_ok());
}
