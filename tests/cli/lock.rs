//! `flock lock` on a stand-in hub, and what plans and checks make of flock.lock without it.

use serde_json::{Value, json};

use crate::support::hub::StandInHub;
use crate::support::weights::{Network, Q4_K_M, Q8_0};
use crate::support::{Outcome, Repository, list, number, text};

const HEAD: &str = r#"
cluster "lab"
node "one" address="10.255.255.1"
engine "llama.cpp" { path "/opt/llama.cpp/llama-server" }
engine "vllm" { path "/opt/vllm/bin/vllm" }
"#;

const INVENTORY: &str = r#"{ "format": 1, "nodes": [ { "name": "one", "accelerators": [
    { "name": "NVIDIA GeForce RTX 4090", "compute_capability": "8.9",
      "memory": { "total_bytes": 25757220864, "free_bytes": 25757220864 } } ] } ] }"#;

/// A config repository and a hub.
struct World {
    hub: StandInHub,
    repository: Repository,
}

impl World {
    fn new(models: &str) -> Self {
        let repository = Repository::with(&[("cluster.kdl", &format!("{HEAD}{models}"))]);
        std::fs::write(repository.beside("inventory.json"), INVENTORY).expect("a file");
        Self { hub: StandInHub::start(), repository }
    }

    fn config(&self, models: &str) {
        self.repository.write("cluster.kdl", format!("{HEAD}{models}"));
    }

    fn flock_with(&self, token: Option<&str>, arguments: &[&str]) -> Outcome {
        let mut command = self.repository.command();
        command.args(arguments).env("HF_ENDPOINT", self.hub.endpoint());
        if let Some(token) = token {
            command.env("HF_TOKEN", token);
        }
        crate::support::Running::start(command).finish(crate::support::DEADLINE)
    }

    fn flock(&self, arguments: &[&str]) -> Outcome {
        self.flock_with(None, arguments)
    }

    /// Without any hub.
    fn offline(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.repository.command();
        command.args(arguments).env("HF_ENDPOINT", "http://127.0.0.1:9");
        crate::support::Running::start(command).finish(crate::support::DEADLINE)
    }

    fn plan(&self, more: &[&str]) -> Outcome {
        let file = self.repository.beside("inventory.json").display().to_string();
        self.offline(&[&["plan", "--inventory", &file], more].concat())
    }

    fn lock_text(&self) -> String {
        std::fs::read_to_string(self.repository.path("flock.lock")).expect("flock.lock is there")
    }

    fn lock(&self) -> Value {
        serde_json::from_str(&self.lock_text()).expect("JSON")
    }

    /// A 16-bit model in two shards.
    fn plain(&self, repository: &str, card: Value) {
        let network = Network::default();
        let (one, two) = (network.safetensors(0..1, "BF16"), network.safetensors(1..2, "BF16"));
        self.hub.repository(
            repository,
            &card,
            &[
                ("config.json", &network.config(None)),
                ("generation_config.json", b"{}"),
                ("tokenizer.json", b"{\"a\": 1}"),
                ("chat_template.jinja", b"{{ x }}"),
                ("README.md", b"# hello"),
                ("model-00001-of-00002.safetensors", &one),
                ("model-00002-of-00002.safetensors", &two),
            ],
        );
    }

    /// Quantisations of it in GGUF.
    fn gguf(&self, repository: &str, network: &Network, base: &str) {
        let (q4, q8) = (network.gguf(Q4_K_M.0, Q4_K_M.1), network.gguf(Q8_0.0, Q8_0.1));
        let card = json!({ "base_model": base, "relation": "quantized", "license": "mit" });
        self.hub.repository(repository, &card, &[("m-Q4_K_M.gguf", &q4), ("m-Q8_0.gguf", &q8)]);
    }
}

fn ids(source: &Value) -> Vec<&str> {
    list(source, "/variants").iter().map(|variant| text(variant, "/id")).collect()
}

/// The repository that the first fetch of a plan reads.
fn fetched(plan: &Value) -> &str {
    let source = text(&list(plan, "/steps")[0], "/fetch/fetch/source");
    source.strip_prefix("hf:").and_then(|rest| rest.split_once('@')).expect("of the hub").0
}

/// What is said, whatever the line breaks.
trait Tells {
    fn tells(&self, part: &str) -> &Self;
}

impl Tells for Outcome {
    fn tells(&self, part: &str) -> &Self {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let all = words(&format!("{}\n{}", self.stdout, self.stderr));
        assert!(all.contains(&words(part)), "it does not say {part:?}\n{self}");
        self
    }
}

fn names(variant: &Value) -> Vec<&str> {
    list(variant, "/files").iter().map(|file| text(file, "/name")).collect()
}

/// From nothing to a plan, and the hub is asked by `flock lock` alone.
#[test]
fn what_is_locked_is_planned_without_the_hub() {
    let world = World::new("model \"m\" { source \"hf:acme/coder\"; engine \"vllm\" }\n");
    world.plain("acme/coder", json!({ "license": "apache-2.0" }));

    let warned = world.offline(&["validate"]);
    warned.expect(0).tells("FLK214").tells("hf:acme/coder is not in flock.lock").tells("flock lock");
    world.offline(&["validate", "--deny", "warnings"]).expect(3);
    world.plan(&[]).expect(3).tells("FLK214").tells("run `flock lock`");

    let locked = world.flock(&["lock"]);
    locked.expect(0).tells("acme/coder").tells("flock.lock written: 1 added");
    assert!(locked.stdout.contains("bf16"), "{locked}");
    let lock = world.lock();
    let source = &lock["models"]["m"]["sources"][0];
    assert_eq!(text(source, "/commit"), world.hub.commit("acme/coder"));
    assert_eq!((text(source, "/license"), source["gated"].as_bool()), ("apache-2.0", Some(false)));
    assert_eq!(ids(source), ["bf16"]);
    let variant = &source["variants"][0];
    assert_eq!(
        names(variant),
        [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "tokenizer.json"
        ]
    );
    // Digests of small files are of their bytes; those of large ones are the hub's.
    for file in list(variant, "/files") {
        let path = world.hub.path("acme/coder").join(text(file, "/name"));
        let bytes = std::fs::read(path).expect("it is there");
        assert_eq!(text(file, "/sha256"), flock::base::Digest::of(&bytes).hex());
        assert_eq!(number(file, "/size_bytes"), bytes.len() as u64);
    }

    let asked = world.hub.requests().len();
    let weights = world.hub.requests().iter().filter(|r| r.path.contains("safetensors")).map(|r| r.bytes).sum::<u64>();
    assert!(weights < 2 << 20, "only headers are read: {weights} bytes");
    world.offline(&["validate", "--deny", "warnings"]).expect(0);
    let plan = world.plan(&["--format", "json"]).expect(0).json();
    let fetch = list(&plan, "/steps").iter().find(|step| text(step, "/verb") == "fetch").expect("a fetch");
    assert_eq!(number(fetch, "/download_bytes"), number(variant, "/download_bytes"));
    assert_eq!(text(fetch, "/fetch/fetch/source"), format!("hf:acme/coder@{}", text(source, "/commit")));
    assert_eq!(list(fetch, "/fetch/fetch/files").len(), list(variant, "/files").len());
    assert!(text(fetch, "/fetch/fetch/files/0/sha256").starts_with("sha256:"));
    let file = world.repository.beside("inventory.json").display().to_string();
    world.offline(&["validate", "--inventory", &file]).expect(0).tells("fits");
    world.offline(&["explain", "m", "--inventory", &file]).expect(0).tells("bf16");
    assert_eq!(world.hub.requests().len(), asked, "nobody else asked the hub");
}

/// The same lock twice, and what changes when one repository of two moves.
#[test]
fn pins_stay_until_they_are_updated() {
    let both = "model \"a\" { source \"hf:acme/a\" }\nmodel \"b\" { source \"hf:acme/b\" }\n";
    let world = World::new(both);
    let (one, two) = ("1".repeat(40), "2".repeat(40));
    world.plain("acme/a", json!({ "commit": one }));
    world.plain("acme/b", json!({ "commit": one }));
    world.flock(&["lock"]).expect(0).tells("2 added");
    let first = world.lock_text();
    let modified =
        || std::fs::metadata(world.repository.path("flock.lock")).and_then(|m| m.modified()).expect("it is there");
    let before = modified();
    world.offline(&["lock"]).expect(0).tells("flock.lock not changed: 2 unchanged");
    world.flock(&["lock", "--update"]).expect(0).tells("not changed");
    assert_eq!((world.lock_text(), modified()), (first.clone(), before), "the same bytes, and not written");
    world.repository.commit("lock");

    // A moves: its small file is another one.
    world.plain("acme/a", json!({ "commit": two }));
    std::fs::write(world.hub.path("acme/a").join("generation_config.json"), b"{ }").expect("written");
    world.flock(&["lock"]).expect(0).tells("2 unchanged");
    assert_eq!(world.lock_text(), first);
    world.flock(&["lock", "--update", "b"]).expect(0).tells("2 unchanged");
    assert_eq!(world.lock_text(), first);
    let moved = world.flock(&["lock", "--update", "a"]);
    moved.expect(0).tells("1111111111 -> 2222222222").tells("1 changed, 1 unchanged");
    let diff = world.repository.git(&["diff", "--numstat", "flock.lock"]);
    let counts: Vec<&str> = diff.split_whitespace().take(2).collect();
    assert_eq!(counts, ["3", "3"], "commit, the file, the sum of sizes:\n{}", world.repository.git(&["diff"]));

    // From the same state, the same bytes.
    let now = world.lock_text();
    std::fs::remove_file(world.repository.path("flock.lock")).expect("removed");
    world.flock(&["lock"]).expect(0);
    assert_eq!(world.lock_text(), now);

    for (arguments, words) in
        [(&["lock", "--update", "c"][..], "there is no model `c`"), (&["lock", "x"], "unexpected argument")]
    {
        world.flock(arguments).expect(64).tells(words);
    }
}

/// Each way in which a config can move away from its lock.
#[test]
fn a_lock_that_disagrees_is_an_error_that_names_the_command() {
    let model = |inner: &str| format!("model \"m\" {{ engine \"vllm\"; {inner} }}\n");
    let world = World::new(&model("source \"hf:acme/coder\""));
    world.plain("acme/coder", json!({ "branches": { "dev": "d".repeat(40) } }));
    world.plain("acme/other", json!({}));
    world.flock(&["lock"]).expect(0);
    for (inner, words) in [
        ("source \"hf:acme/other\"", "does not have hf:acme/other, and hf:acme/coder instead"),
        ("source \"hf:acme/coder@dev\"", "does not have hf:acme/coder@dev"),
        ("source \"hf:acme/coder\" revision=\"dev\"", "does not have hf:acme/coder@dev"),
        ("source \"hf:acme/coder#bf16\"", "does not have hf:acme/coder#bf16"),
        ("source \"hf:acme/coder\"; weights-from \"TheBloke\"", "from nobody, and `weights-from` trusts TheBloke"),
        (
            "variant \"x\" source=\"hf:acme/coder\"; variant \"y\" source=\"hf:acme/other\"",
            "does not have hf:acme/other",
        ),
    ] {
        world.config(&model(inner));
        for outcome in [world.offline(&["validate"]), world.plan(&[]), world.offline(&["plan"])] {
            outcome.expect(3).tells("FLK215").tells(words).tells("flock lock");
        }
    }
    // Another name for the same source is no disagreement, and neither is a model that left.
    world.config(&model("variant \"x\" source=\"hf:acme/coder\""));
    let plan = world.plan(&["--format", "json"]).expect(0).json();
    assert_eq!(text(&plan, "/instances/0/variant"), "x");
    world.config("model \"n\" { source \"on-node:/data/x\" }\n");
    world.offline(&["validate"]).expect(0).tells("FLK220").tells("`flock lock` removes it");
    world.offline(&["lock"]).expect(0).tells("removed").tells("1 removed");
    assert_eq!(world.lock()["models"], json!({}));

    // What is added is resolved; what was there keeps its pin.
    world.config(&model("variant \"x\" source=\"hf:acme/coder\""));
    world.flock(&["lock"]).expect(0);
    let pinned = text(&world.lock(), "/models/m/sources/0/commit").to_owned();
    world.hub.repository("acme/coder", &json!({ "commit": "9".repeat(40) }), &[]);
    world.config(&model("variant \"y\" source=\"hf:acme/other\"; variant \"x\" source=\"hf:acme/coder\""));
    world.flock(&["lock"]).expect(0).tells("acme/other (added)");
    let lock = world.lock();
    let sources = list(&lock, "/models/m/sources");
    assert_eq!(sources.iter().map(|s| text(s, "/source")).collect::<Vec<_>>(), ["hf:acme/other", "hf:acme/coder"]);
    assert_eq!(text(&sources[1], "/commit"), pinned);
    let plan = world.plan(&["--format", "json"]).expect(0).json();
    assert_eq!(text(&plan, "/instances/0/variant"), "y", "explicit variants in their own order");
}

/// A broken lock is told at its line; the command that writes it repairs nothing that it cannot read.
#[test]
fn a_malformed_lock_is_3_with_its_line() {
    let world = World::new("model \"m\" { source \"hf:acme/coder\" }\n");
    world.plain("acme/coder", json!({}));
    world.flock(&["lock"]).expect(0);
    let good = world.lock_text();
    let line = good.lines().position(|line| line.contains("\"config.json\"")).expect("a file") + 1;
    let bad = good.replace("\"config.json\"", "\"../../.ssh/authorized_keys\"");
    world.repository.write("flock.lock", &bad);
    for arguments in [&["validate"][..], &["plan"], &["lock"], &["apply", "--yes"], &["explain", "m"]] {
        let outcome = world.flock(arguments);
        outcome.expect(3).tells("FLK216").tells(&format!("flock.lock:{line}:")).tells("leaves its folder");
    }
    let answer = world.offline(&["validate", "--format", "json"]).expect(3).json();
    let found = &answer["diagnostics"][0];
    assert_eq!((text(found, "/file"), number(found, "/line")), ("flock.lock", line as u64));
    assert_eq!(world.lock_text(), bad, "it is left to people");
    world.repository.write("flock.lock", good.replacen("    \"m\": {", "<<<<<<< HEAD\n    \"m\": {", 1));
    world.flock(&["plan"]).expect(3).tells("merge conflict").tells("take either side");
    world.repository.write("flock.lock", [0xff, 0xfe]);
    world.flock(&["validate"]).expect(3).tells("UTF-8");
    // Looking needs no lock.
    world.flock(&["drift"]).expect(9);
}

/// What the hub refuses, each with its remedy; the other model is pinned all the same.
#[test]
fn a_source_that_is_refused_says_why_and_the_rest_is_written() {
    let world = World::new("model \"bad\" { source \"hf:acme/bad\" }\nmodel \"good\" { source \"hf:acme/good\" }\n");
    world.plain("acme/good", json!({}));
    let cases: &[(Value, &str, &str, &str)] = &[
        (json!({ "gated": "manual" }), "hf:acme/bad", "no token was sent", "HF_TOKEN"),
        (json!({ "private": true }), "hf:acme/bad", "", "HF_TOKEN"),
        (json!({}), "hf:acme/nowhere", "", ""),
        (json!({}), "hf:acme/bad@gone", "no revision gone", "name a branch, tag or commit"),
        (json!({}), "hf:acme/bad#Q9_X", "acme/bad has no `Q9_X`", "it has: bf16"),
    ];
    for (card, source, words, remedy) in cases {
        let _ = std::fs::remove_file(world.repository.path("flock.lock"));
        world.plain("acme/bad", card.clone());
        world.config(&format!(
            "model \"bad\" {{ source \"{source}\" }}\nmodel \"good\" {{ source \"hf:acme/good\" }}\n"
        ));
        let outcome = world.flock(&["lock"]);
        outcome.expect(1).tells("FLK217").tells(words).tells(remedy).tells("cluster.kdl:6");
        outcome.tells("1 added, 1 failed");
        let lock = world.lock();
        assert!(lock["models"].get("bad").is_none() && lock["models"].get("good").is_some(), "{lock:#}");
    }
    // A failed update keeps what there was.
    world.plain("acme/bad", json!({}));
    world.config("model \"bad\" { source \"hf:acme/bad\" }\nmodel \"good\" { source \"hf:acme/good\" }\n");
    world.flock(&["lock"]).expect(0);
    let before = world.lock_text();
    world.plain("acme/bad", json!({ "gated": "auto", "commit": "2".repeat(40) }));
    let answer = world.flock(&["lock", "--update", "--format", "json"]);
    let answer = answer.expect(1).json();
    assert_eq!(answer["written"], json!(false));
    assert_eq!(
        list(&answer, "/models").iter().map(|m| text(m, "/change")).collect::<Vec<_>>(),
        ["failed", "unchanged"]
    );
    assert_eq!(text(&answer, "/diagnostics/0/id"), "FLK217");
    assert_eq!(world.lock_text(), before);
    // With a token that has access it is pinned as gated.
    world.plain("acme/bad", json!({ "gated": "auto", "access": ["hf_ada"], "commit": "2".repeat(40) }));
    world.flock_with(Some("hf_other"), &["lock", "--update"]).expect(1).tells("no access (403)").tells("accept");
    world.flock_with(Some("nonsense"), &["lock", "--update"]).expect(1).tells("refuses the token");
    world.flock_with(Some("hf_ada"), &["lock", "--update"]).expect(0).tells("gated");
    assert_eq!(world.lock()["models"]["bad"]["sources"][0]["gated"], json!(true));
    // A name that was left behind.
    world.plain("acme/new", json!({ "renamed_from": ["acme/old"] }));
    world.config("model \"m\" { source \"hf:acme/old\" }\n");
    let renamed = world.flock(&["lock"]);
    renamed.expect(0).tells("FLK219").tells("has weights of acme/new").tells("write `hf:acme/new`");
    assert_eq!(text(&world.lock(), "/models/m/sources/0/repository"), "acme/new");
    // The hub away: nothing is lost.
    let before = world.lock_text();
    world.hub.fault(json!({ "kind": "status", "on": "any", "status": 503 }));
    let away = world.flock(&["lock", "--update"]);
    away.expect(1).tells("cannot be reached");
    assert_eq!(world.lock_text(), before);
}

/// Quantisations of trusted owners alone, of the same network alone.
#[test]
fn quantisations_are_taken_from_trusted_owners_only() {
    let models = |owners: &str| format!("model \"m\" {{ source \"hf:acme/coder\"; {owners} }}\n");
    let world = World::new(&models("weights-from \"TheBloke\" \"bartowski\""));
    let network = Network::default();
    let base = "acme/coder";
    world.plain(base, json!({}));
    world.gguf("TheBloke/coder-GGUF", &network, base);
    world.gguf("bartowski/coder-GGUF", &network, base);
    world.gguf("stranger/coder-GGUF", &network, base);
    world.gguf("TheBloke/unrelated-GGUF", &network, "acme/else");
    let other = Network { layers: 3, kv_heads: 4, ..Network::default() };
    world.gguf("TheBloke/wrong-GGUF", &other, base);
    // Padding is no difference; a gated one is left out.
    let padded = Network { vocab: 512 + 128, ..Network::default() };
    world.gguf("bartowski/padded-GGUF", &padded, base);
    let card = json!({ "base_model": base, "relation": "quantized", "gated": "manual" });
    world.hub.repository("bartowski/secret-GGUF", &card, &[("x.gguf", &network.gguf(Q8_0.0, Q8_0.1))]);

    let outcome = world.flock(&["lock"]);
    outcome.expect(0).tells("FLK218").tells("TheBloke/wrong-GGUF is no quantisation of acme/coder");
    outcome.tells("3 layers instead of 2").tells("bartowski/secret-GGUF");
    let lock = world.lock();
    let sources = list(&lock, "/models/m/sources");
    let repositories: Vec<&str> = sources.iter().map(|source| text(source, "/repository")).collect();
    assert_eq!(repositories, [base, "TheBloke/coder-GGUF", "bartowski/coder-GGUF", "bartowski/padded-GGUF"]);
    assert_eq!(ids(&sources[1]), ["gguf:Q8_0", "gguf:Q4_K_M"], "best first");
    assert_eq!(text(&sources[1], "/quantised_from"), base);
    assert!(!world.lock_text().contains("stranger"));

    let plan = world.plan(&["--format", "json"]).expect(0).json();
    assert_eq!(text(&plan, "/instances/0/variant"), "bf16", "the best that fits");
    world.config(&format!("{}\n", models("engine \"llama.cpp\"; weights-from \"TheBloke\" \"bartowski\"")));
    let plan = world.plan(&["--format", "json"]).expect(0).json();
    assert_eq!(text(&plan, "/instances/0/variant"), "gguf:Q8_0", "of the owner that is trusted most");
    assert_eq!(fetched(&plan), "TheBloke/coder-GGUF");
    // The other order of trust is the same lock and another choice.
    world.config(&models("engine \"llama.cpp\"; weights-from \"bartowski\" \"TheBloke\""));
    let plan = world.plan(&["--format", "json"]).expect(0).json();
    assert_eq!(fetched(&plan), "bartowski/coder-GGUF");

    // An owner that is no longer trusted goes without asking anybody; a new one is asked alone.
    world.config(&models("weights-from \"TheBloke\""));
    world.plan(&[]).expect(3).tells("FLK215");
    world.offline(&["lock"]).expect(0).tells("bartowski/coder-GGUF (removed)");
    assert!(!world.lock_text().contains("bartowski"));
    world.config(&models("weights-from \"TheBloke\" \"stranger\""));
    let before = world.hub.requests().len();
    world.flock(&["lock"]).expect(0).tells("stranger/coder-GGUF (added)");
    let asked = world.hub.requests_since(before);
    assert!(asked.iter().all(|request| !request.path.contains("TheBloke")), "{asked:#?}");
    // A bad minute of the hub loses no pin.
    let before = world.lock_text();
    world.hub.fault(json!({ "kind": "status", "on": "any", "path": "stranger/coder-GGUF", "status": 503 }));
    world.flock(&["lock", "--update"]).expect(1).tells("cannot be reached").tells("1 failed");
    assert_eq!(world.lock_text(), before);
    world.hub.heal();
    // A misspelt owner has nothing, which is said: nothing else would tell.
    world.config(&models("weights-from \"TheBloke\" \"bartowsky\""));
    world.flock(&["lock"]).expect(0).tells("FLK218").tells("the hub lists nothing of bartowsky as quantised from");
}

/// Everything that one repository can hold (IN-5, IN-13), and what `#` picks of it.
#[test]
fn a_repository_with_many_sets_is_taken_apart() {
    let world = World::new("model \"m\" { source \"hf:acme/all\" }\n");
    let network = Network::default();
    let (q4, q8) = (network.gguf(Q4_K_M.0, Q4_K_M.1), network.gguf(Q8_0.0, Q8_0.1));
    world.plain("acme/all", json!({ "base_model": "acme/root" }));
    let fp8 = network.config(Some(json!({ "quant_method": "fp8" })));
    let whole = network.safetensors(0..2, "F8_E4M3");
    let twice = network.safetensors(0..2, "BF16");
    world.hub.repository(
        "acme/all",
        &json!({ "base_model": "acme/root" }),
        &[
            ("consolidated.safetensors", &twice),
            ("pytorch_model.bin", &twice),
            ("fp8/config.json", &fp8),
            ("fp8/tokenizer.json", b"{}"),
            ("fp8/model.safetensors", &whole),
            ("Q8_0/m-00001-of-00001.gguf", &q8),
            ("m-q4_k_m.gguf", &q4),
            ("lost-00001-of-00002.gguf", &q4),
            ("mmproj-f16.gguf", &q8),
        ],
    );
    world.flock(&["lock"]).expect(0);
    let lock = world.lock();
    let source = &lock["models"]["m"]["sources"][0];
    assert_eq!(ids(source), ["bf16", "fp8", "gguf:Q8_0", "gguf:Q4_K_M"]);
    let variants = list(source, "/variants");
    let (root, fp8) = (&variants[0], &variants[1]);
    assert!(
        names(root).iter().all(|name| !name.contains('/') && !name.contains("consolidated") && !name.contains(".bin"))
    );
    assert_eq!(names(fp8), ["fp8/config.json", "fp8/model.safetensors", "fp8/tokenizer.json"]);
    assert_eq!(text(fp8, "/start_file"), "fp8");
    // A projector is pinned beside weights, never as weights.
    assert!(variants.iter().all(|variant| names(variant).iter().all(|name| !name.contains("mmproj"))));
    assert!(world.lock_text().contains("1 of 2 shards of lost"));

    for (selector, wanted) in [
        ("fp8", &["fp8"][..]),
        ("Q8_0", &["gguf:Q8_0"]),
        ("q4_k_m", &["gguf:Q4_K_M"]),
        ("m-q4_k_m.gguf", &["gguf:Q4_K_M"]),
        ("Q8_0/m-00001-of-00001.gguf", &["gguf:Q8_0"]),
        ("bf16", &["bf16"]),
    ] {
        world.config(&format!("model \"m\" {{ source \"hf:acme/all#{selector}\" }}\n"));
        world.flock(&["lock"]).expect(0);
        assert_eq!(ids(&world.lock()["models"]["m"]["sources"][0]), wanted, "{selector}");
    }
    // A shard that is missing is refused by name.
    world.config("model \"m\" { source \"hf:acme/all#lost-00001-of-00002.gguf\" }\n");
    world.flock(&["lock"]).expect(1).tells("1 of 2 shards of lost");
    world.config("model \"m\" { source \"hf:acme/all#Q2_K\" }\n");
    world.flock(&["lock"]).expect(1).tells("has no `Q2_K`").tells("it has: bf16, fp8, gguf:Q8_0, gguf:Q4_K_M");
}

/// The plan knows that only the lock changed, and what a commit had.
#[test]
fn another_commit_in_the_lock_is_another_config() {
    let world = World::new("model \"m\" { source \"hf:acme/coder\"; engine \"vllm\" }\n");
    world.plain("acme/coder", json!({ "commit": "1".repeat(40) }));
    world.plan(&[]).expect(3);
    world.repository.commit("without a lock");
    world.flock(&["lock"]).expect(0);
    let first = world.plan(&["--format", "json"]).expect(0).json();
    world.repository.commit("locked");
    std::fs::write(world.hub.path("acme/coder").join("tokenizer.json"), b"{\"b\": 2}").expect("written");
    world.plain("acme/coder", json!({ "commit": "2".repeat(40) }));
    std::fs::write(world.hub.path("acme/coder").join("tokenizer.json"), b"{\"b\": 2}").expect("written");
    world.flock(&["lock", "--update"]).expect(0).tells("1111111111 -> 2222222222");
    let second = world.plan(&["--format", "json"]).expect(0).json();
    assert_ne!(text(&first, "/config_digest"), text(&second, "/config_digest"));
    assert_ne!(text(&first, "/instances/0/specification"), text(&second, "/instances/0/specification"));
    let then = world.plan(&["--against", "HEAD", "--format", "json"]).expect(0).json();
    assert_eq!(text(&first, "/config_digest"), text(&then, "/config_digest"));
    assert_eq!(first["steps"], then["steps"], "that commit's lock");
    world.plan(&["--against", "HEAD~1"]).expect(3).tells("FLK214");
    // Layout means nothing, in the lock too.
    let compact: Value = world.lock();
    world.repository.write("flock.lock", compact.to_string());
    let again = world.plan(&["--format", "json"]).expect(0).json();
    assert_eq!(text(&second, "/config_digest"), text(&again, "/config_digest"));
}

#[test]
fn a_repository_on_the_hub_is_sized() {
    let world = World::new("");
    let network = Network::default();
    world.plain("acme/coder", json!({}));
    world.gguf("acme/coder-GGUF", &network, "acme/coder");
    let sized = world.flock(&["size", "hf:acme/coder", "--format", "json"]).expect(0).json();
    assert_eq!((text(&sized, "/source"), text(&sized, "/variants/0/id")), ("hf:acme/coder", "bf16"));
    assert_eq!(number(&sized, "/kv/bytes_per_token"), 2 * 2 * 2 * 64 * 2);
    let sized = world.flock(&["size", "hf:acme/coder-GGUF", "--format", "json"]).expect(0).json();
    let found: Vec<&str> = list(&sized, "/variants").iter().map(|variant| text(variant, "/id")).collect();
    assert_eq!(found, ["gguf:Q8_0", "gguf:Q4_K_M"]);
    let sized = world.flock(&["size", "hf:acme/coder-GGUF@main#Q4_K_M", "--format", "json"]).expect(0).json();
    assert_eq!(list(&sized, "/variants").len(), 1);
    world.flock(&["size", "hf:acme/coder", "--accelerator", "24GiB", "--explain"]).expect(0).tells("fits");
    world.flock(&["size", "hf:acme/none"]).expect(1).tells("hint:");
    world.flock(&["size", "hf:acme"]).expect(64).tells("hf:owner/name");
    world.flock(&["size", "hf:acme/coder-GGUF#Q2_K"]).expect(1).tells("it has: gguf:Q8_0, gguf:Q4_K_M");
}
