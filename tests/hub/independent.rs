//! The hub's own client, huggingface_hub, on the same stand-in: it takes it for a hub, and says the same as we do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flock::base::Digest;
use flock::edge::HfHub;
use flock::ports::{Hub as _, HubError};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::{client, client_as, pattern};
use crate::support::Running;
use crate::support::hub::StandInHub;

/// A python with huggingface_hub: what `scripts/test` says, else what `scripts/check-hub` installs.
fn python() -> PathBuf {
    if let Some(path) = std::env::var_os("FLOCK_TEST_HF_PYTHON") {
        return PathBuf::from(path);
    }
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-hub"));
    command.arg("python");
    let outcome = Running::start(command).finish(Duration::from_secs(10 * 60));
    PathBuf::from(outcome.expect(0).stdout.trim())
}

fn check(arguments: &[&str]) -> String {
    let mut command = Command::new(python());
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/check_hub.py")).args(arguments);
    command.env_remove("HF_TOKEN").env_remove("HF_ENDPOINT");
    Running::start(command).finish(Duration::from_secs(120)).expect(0).stdout.clone()
}

/// What flock says, in the words of `check_hub.py ask`.
async fn ours(client: &HfHub, repository: &str, revision: Option<&str>, file: &str) -> Value {
    let answer = async {
        let found = client.repository(repository, revision).await?;
        let mut bytes = Vec::new();
        let mut stream = client.open(&found.repository, &found.commit, file, 0).await?;
        stream.read_to_end(&mut bytes).await.expect("read");
        let files: Vec<_> = found
            .files
            .iter()
            .map(|file| {
                json!([file.name, file.size_bytes, file.sha256.as_ref().map(|digest| &digest["sha256:".len()..])])
            })
            .collect();
        Ok::<_, HubError>(json!({
            "id": found.repository, "sha": found.commit, "gated": found.gated, "license": found.license,
            "base_model": found.base_models, "files": files, "sha256": Digest::of(&bytes).hex(),
        }))
    };
    let name = match answer.await {
        Ok(answer) => return answer,
        Err(HubError::NoRepository { .. }) => "RepositoryNotFoundError",
        // A missing and a private repository look so to one without a token, a gated file as what it is.
        Err(HubError::Unauthorized { sent: false, what }) if what.matches('/').count() == 1 => {
            "RepositoryNotFoundError"
        }
        Err(HubError::Unauthorized { sent: false, .. } | HubError::Forbidden { .. }) => "GatedRepoError",
        Err(HubError::Unauthorized { sent: true, .. }) => "HfHubHTTPError",
        Err(HubError::Disabled { .. }) => "DisabledRepoError",
        Err(HubError::NoRevision { .. }) => "RevisionNotFoundError",
        Err(HubError::NoFile { .. }) => "RemoteEntryNotFoundError",
        Err(other) => panic!("{other}"),
    };
    json!({"error": name})
}

#[test]
fn the_stand_in_is_a_hub_to_the_hubs_own_client() {
    assert!(check(&[]).contains("takes the stand-in for a hub"));
}

#[tokio::test]
async fn both_clients_say_the_same() {
    let hub = StandInHub::start();
    let weights = pattern(2_000_000);
    let files: &[(&str, &[u8])] = &[("config.json", b"{}"), ("q4/m.gguf", &weights), ("tokenizer.model", b"tok")];
    let old = "d".repeat(40);
    let card = json!({"license": "llama3", "base_model": ["big/a", "big/b"], "tags": {"v1": old}, "many": {"count": 1200},
                      "renamed_from": ["ada/old"]});
    hub.repository("ada/open", &card, files);
    hub.repository("ada/gated", &json!({"gated": "auto", "access": ["hf_ada"]}), files);
    hub.repository("ada/private", &json!({"private": true, "access": ["hf_ada"]}), files);
    hub.repository("ada/blocked", &json!({"disabled": true}), files);
    let file = "q4/m.gguf";
    let questions = [
        ["", "ada/old", "", file],
        ["", "ada/open", "v1", "config.json"],
        ["", "ada/open", "nope", file],
        ["", "ada/open", "", "nope"],
        ["", "ada/gated", "", file],
        ["hf_bob", "ada/gated", "", file],
        ["hf_ada", "ada/gated", "", file],
        ["", "ada/private", "", file],
        ["hf_bob", "ada/private", "", file],
        ["hf_ada", "ada/private", "", file],
        ["", "ada/blocked", "", file],
        ["stale", "ada/open", "", file],
    ];
    let theirs = check(&["ask", hub.endpoint(), &json!(questions).to_string()]);
    let theirs: Vec<Value> = serde_json::from_str(&theirs).expect("JSON");
    assert_eq!(theirs.len(), questions.len());
    for ([token, repository, revision, file], theirs) in questions.into_iter().zip(theirs) {
        let client = if token.is_empty() { client(&hub) } else { client_as(&hub, token) };
        let revision = Some(revision).filter(|revision| !revision.is_empty());
        let ours = ours(&client, repository, revision, file).await;
        assert_eq!(ours, theirs, "{repository} {revision:?} {file} {token:?}");
    }
}
