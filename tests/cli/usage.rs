//! The command line itself: exit 64, help, the other tool of the same name, closed pipes.

use std::process::Stdio;
use std::time::Duration;

use crate::SMALL;
use crate::support::{Repository, Running};

fn bare(arguments: &[&str]) -> crate::support::Outcome {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_flock"));
    command.args(arguments);
    Running::start(command).finish(Duration::from_secs(120))
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

/// What `init` writes for a forge is run here by the shell, with a client that only writes down what it is asked.
#[test]
fn the_workflow_of_init_keeps_one_comment_up_to_date() {
    let repository = Repository::empty();
    let folder = repository.beside("fresh");
    bare(&["init", &folder.display().to_string()]).expect(0);
    let workflow = std::fs::read_to_string(folder.join(".github/workflows/flock.yml")).expect("init wrote it");
    let step = workflow.split("- name: comment").nth(1).expect("the step").split("- name:").next().expect("its text");
    assert!(step.contains("head.repo.full_name == github.repository"), "a fork's token cannot write\n{step}");
    let script: String = step
        .split("run: |\n")
        .nth(1)
        .expect("a script")
        .lines()
        .map(|line| line.trim_start().to_owned() + "\n")
        .collect();
    let client = "#!/bin/sh\necho \"$*\" >> calls\ncase \"$*\" in *--jq*) cat found;; esac\n";
    let place = repository.beside("runner");
    std::fs::create_dir(&place).expect("a folder");
    std::fs::write(place.join("gh"), client).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.join("gh"), mode).expect("executable");
    std::fs::write(place.join("plan.md"), "<!-- flock plan lab -->\nplan\n").expect("a file");
    let run = |found: &str| {
        let _ = std::fs::remove_file(place.join("calls"));
        std::fs::write(place.join("found"), found).expect("a file");
        let mut command = std::process::Command::new("bash");
        let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap_or_default());
        command.args(["-e", "-c", &script]).current_dir(&place).env("PATH", path);
        command.env("GITHUB_REPOSITORY", "lab/config").env("NUMBER", "7");
        crate::support::Running::start(command).finish(crate::support::DEADLINE).expect(0);
        std::fs::read_to_string(place.join("calls")).expect("it was called")
    };
    let first = run("");
    assert!(first.contains("--silent repos/lab/config/issues/7/comments --field body=@plan.md"), "{first}");
    assert!(!first.contains("PATCH"), "{first}");
    let again = run("4711\n4712\n");
    assert!(again.contains("--method PATCH repos/lab/config/issues/comments/4711 --field body=@plan.md"), "{again}");
    assert_eq!(again.matches("body=@plan.md").count(), 1, "{again}");
}

#[test]
fn colour_is_for_terminals_only() {
    let repository = Repository::with(&[("cluster.kdl", "nonsense 1\n")]);
    let outcome = repository.flock(&["validate"]);
    assert!(!outcome.expect(3).says("\u{1b}["), "{outcome}");

    // On a terminal there is colour, unless it is forbidden; and the text is the same without it.
    repository.write("cluster.kdl", SMALL);
    let inventory = r#"{ "format": 1, "nodes": [ { "name": "one", "accelerators": [] } ] }"#;
    std::fs::write(repository.beside("inventory.json"), inventory).expect("it can be written");
    let on_a_terminal = |name: &str, value: &str| {
        // `script` gives the command a terminal of its own; it is part of util-linux.
        let mut command = std::process::Command::new("script");
        let flock = format!(
            "'{}' graph hardware --inventory inventory.json; flock_code=$?; '{}' nonsense; exit $flock_code",
            env!("CARGO_BIN_EXE_flock"),
            env!("CARGO_BIN_EXE_flock")
        );
        command.args(["--quiet", "--return", "--command", &flock, "/dev/null"]);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", repository.beside("home")).env("TERM", "xterm").env(name, value);
        let _ = std::fs::copy(repository.path("cluster.kdl"), repository.beside("cluster.kdl"));
        command.current_dir(repository.beside(""));
        let shown = Running::start(command).finish(Duration::from_secs(120));
        shown.expect(0).stdout.clone()
    };
    let coloured = on_a_terminal("UNUSED", "1");
    assert!(coloured.contains("\u{1b}["), "{coloured:?}");
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = on_a_terminal(name, value);
        assert!(!plain.contains("\u{1b}["), "{name}={value}: {plain:?}");
        assert!(plain.contains("one"), "{plain:?}");
    }
    assert!(on_a_terminal("NO_COLOR", "").contains("\u{1b}["), "an empty NO_COLOR forbids nothing");
}

/// The help of a command says at length what the command does, not only its first line.
#[test]
fn the_help_of_a_command_is_whole() {
    for (command, words) in [
        ("plan", "Plans the working tree"),
        ("apply", "Safe to run again"),
        ("destroy", "Weights stay on the nodes"),
        ("drain", "A copy starts elsewhere"),
        ("forward", "Authorization: Bearer KEY"),
    ] {
        for arguments in [&["help", command][..], &[command, "--help"]] {
            let shown = bare(arguments).expect(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(shown.contains(words), "{arguments:?}: {shown}");
        }
        let short = bare(&[command, "-h"]);
        assert!(!short.expect(0).says(words), "{short}");
    }
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

/// What only waits for a node ends at once when it is asked to, whatever it waits for.
#[test]
fn waiting_for_a_node_ends_at_once() {
    // It accepts connections and never says a word.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = mute.local_addr().expect("bound").port();
    let node = format!("node \"one\" address=\"127.0.0.1\" {{ ssh port={port} connect-timeout=\"60s\" }}");
    let repository = Repository::with(&[("cluster.kdl", &SMALL.replace("node \"one\" address=\"10.0.0.1\"", &node))]);
    for (arguments, signal) in [(&["discover"][..], "INT"), (&["plan"], "TERM"), (&["status"], "HUP")] {
        let running = repository.start(arguments);
        let _held = mute.accept().expect("it connects");
        running.signal(signal);
        let ended = running.finish(Duration::from_secs(40));
        ended.expect(130);
    }
}

/// What the caller had ignored stays ignored: `nohup flock apply` outlives its terminal.
#[test]
fn an_ignored_hangup_stays_ignored() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = mute.local_addr().expect("bound").port();
    let node = format!("node \"one\" address=\"127.0.0.1\" {{ ssh port={port} connect-timeout=\"1s\" }}");
    let repository = Repository::with(&[("cluster.kdl", &SMALL.replace("node \"one\" address=\"10.0.0.1\"", &node))]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" -C \"$1\" status"]);
    command.arg(env!("CARGO_BIN_EXE_flock")).arg(repository.path(""));
    let running = Running::start(command);
    let _held = mute.accept().expect("it connects");
    running.signal("HUP");
    running.finish(Duration::from_secs(120)).expect(9);
}

/// A drawing needs no node for workflows and with an inventory; what it draws is stable.
#[test]
fn graphs_are_drawn_without_a_node() {
    let repository = Repository::with(&[("cluster.kdl", SMALL)]);
    let inventory = r#"{ "format": 1, "nodes": [ { "name": "one", "accelerators": [
        { "name": "NVIDIA RTX \"4090\"", "memory": { "total_bytes": 25769803776, "free_bytes": 25769803776 } } ] } ] }"#;
    repository.write("inventory.json", inventory);
    let file = repository.path("inventory.json").display().to_string();
    let draw = |format: &str| repository.flock(&["graph", "hardware", "--inventory", &file, "--format", format]);
    draw("text").expect(0).expect_says("0 B of 24.0 GiB used").expect_says("one");
    draw("mermaid").expect(0).expect_says("flowchart LR").expect_says("RTX #quot;4090#quot;");
    draw("dot").expect(0).expect_says("RTX \\\"4090\\\"");
    assert_eq!(draw("json").expect(0).json().pointer("/kind"), Some(&"hardware".into()));
    assert_eq!(draw("json").stdout, draw("json").stdout);
    repository.flock(&["graph", "workflow"]).expect(0);
    repository.flock(&["graph", "picture"]).expect(64);
}
