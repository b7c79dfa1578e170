//! The command line itself: exit 64, help, the other tool of the same name, closed pipes.

use std::process::Stdio;
use std::time::Duration;

use crate::SMALL;
use crate::support::{Repository, Running};

fn bare(arguments: &[&str]) -> crate::support::Outcome {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_flock"));
    command.args(arguments);
    Running::start(command).finish(Duration::from_secs(20))
}

#[test]
fn a_wrong_command_line_is_64() {
    for arguments in
        [&[][..], &["plann"], &["plan", "--no-such-flag"], &["plan", "--format", "xml"], &["ask"], &["apply", "--on"]]
    {
        bare(arguments).expect(64);
    }
    bare(&["plan", "--format", "xml"]).expect(64).expect_says("json");
    bare(&["--help"]).expect(0).expect_says("plan");
    bare(&["plan", "--help"]).expect(0).expect_says("--detailed-exitcode");
    bare(&["--version"]).expect(0).expect_says(env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_file_lock_tool_of_the_same_name_is_recognised() {
    for arguments in [
        &["/var/lock/x", "-c", "true"][..],
        &["-n", "/var/lock/x", "true"],
        &["-x", "9"],
        &["-n", "9"],
        &["9"],
        &["./lockfile", "command"],
    ] {
        bare(arguments).expect(64).expect_says("/usr/bin/flock");
    }
}

#[test]
fn exit_codes_and_diagnostics_are_listed() {
    let listed = bare(&["help", "exit-codes"]);
    for code in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "64", "130"] {
        let found = listed.expect(0).stdout.lines().any(|line| line.split_whitespace().next() == Some(code));
        assert!(found, "no line for {code}\n{listed}");
    }
    let listed = bare(&["help", "diagnostics"]);
    assert!(listed.expect(0).stdout.matches("FLK").count() > 20, "{listed}");
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        bare(&["completions", shell]).expect(0).expect_says("validate");
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    for arguments in [&["help", "diagnostics"][..], &["validate", "--format", "json"], &["completions", "bash"]] {
        let mut command = repository.command();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{arguments:?} {output:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn init_writes_a_repository_that_validates_and_overwrites_nothing() {
    let repository = Repository::empty();
    let folder = repository.beside("fresh").display().to_string();
    bare(&["init", &folder]).expect(0);
    bare(&["-C", &folder, "validate", "--deny", "warnings"]).expect(0);
    for part in ["cluster.kdl", "workflows", "policies"] {
        assert!(repository.beside("fresh").join(part).exists(), "init wrote no {part}");
    }
    std::fs::write(repository.beside("fresh/cluster.kdl"), SMALL).expect("it can be written");
    let again = bare(&["init", &folder]);
    assert_ne!(again.code, Some(0), "{again}");
    assert_eq!(std::fs::read_to_string(repository.beside("fresh/cluster.kdl")).expect("it is there"), SMALL);
}

#[test]
fn colour_is_for_terminals_only() {
    let repository = Repository::with(&[("cluster.kdl", "nonsense 1\n")]);
    let outcome = repository.flock(&["validate"]);
    assert!(!outcome.expect(3).says("\u{1b}["), "{outcome}");
}

#[test]
fn what_is_no_plan_is_5_whatever_its_bytes() {
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    for (name, bytes) in [("a.json", &b"\xff\xfe{}"[..]), ("b.json", b""), ("c.json", b"{}"), ("d.json", b"\0")] {
        repository.write(name, bytes);
        repository.flock(&["show", &repository.path(name).display().to_string()]).expect(5).expect_says("is no plan");
    }
    repository.flock(&["show", "missing.json"]).expect(1);
}

#[test]
fn a_split_that_no_engine_can_make_is_shown_and_4() {
    let repository = Repository::empty();
    let config = r#"{
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024,
        "max_position_embeddings": 8192, "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    }"#;
    let index = r#"{
        "metadata": { "total_size": 1000000 },
        "weight_map": { "model.embed_tokens.weight": "m.safetensors", "lm_head.weight": "m.safetensors" }
    }"#;
    repository.write("m/config.json", config);
    repository.write("m/model.safetensors.index.json", index);
    let folder = repository.path("m").display().to_string();
    let size = |tp: &str| repository.flock(&["size", &folder, "--context", "512", "--tp", tp]);
    size("8").expect(0);
    size("3").expect(4).expect_says("3 refused").expect_says("use tensor parallel 2");
    for beyond in ["9", "16", "1024"] {
        size(beyond).expect(4).expect_says(&format!("{beyond} refused")).expect_says("ACCELERATOR");
    }
    for wrong in ["0", "1025", "-1"] {
        size(wrong).expect(64);
    }
}
