//! Revisions, cards, trees and derivatives.

use flock::ports::{Hub as _, HubError};
use serde_json::json;

use super::{client, client_as, pattern, refused};
use crate::support::hub::{HubOptions, StandInHub};

const OLD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

#[tokio::test]
async fn a_repository_is_its_commit_its_card_and_its_files() {
    let hub = StandInHub::start();
    let weights = pattern(3000);
    hub.repository(
        "ada/Tiny-GGUF",
        &json!({"license": "apache-2.0", "base_model": "ada/Tiny", "branches": {"dev": OLD}, "tags": {"v1": OLD},
                "gated": "manual"}),
        &[
            ("config.json", b"{}"),
            ("q4/tiny a#b?.gguf", &weights),
            (".flock/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/old.gguf", b"old"),
        ],
    );
    let commit = hub.commit("ada/Tiny-GGUF");
    let client = client(&hub);
    let found = client.repository("ada/Tiny-GGUF", None).await.expect("found");
    assert_eq!((found.repository.as_str(), &found.commit), ("ada/Tiny-GGUF", &commit));
    assert_eq!(found.license.as_deref(), Some("apache-2.0"));
    assert_eq!(found.base_models, ["ada/Tiny"]);
    assert!(found.gated);
    let files: Vec<_> = found.files.iter().map(|file| (file.name.as_str(), file.size_bytes)).collect();
    assert_eq!(files, [("config.json", 2), ("q4/tiny a#b?.gguf", 3000)]);
    assert_eq!(found.files[0].sha256, None);
    let digest = flock::base::Digest::of(&weights).to_string();
    assert_eq!(found.files[1].sha256.as_deref(), Some(digest.as_str()));

    for revision in ["dev", "v1", OLD] {
        let old = client.repository("ada/Tiny-GGUF", Some(revision)).await.expect("found");
        assert_eq!(old.commit, OLD);
        assert_eq!(old.files.len(), 1, "{revision}");
    }
    assert_eq!(client.repository("ada/Tiny-GGUF", Some("main")).await.expect("found"), found);
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let hub = StandInHub::start();
    let file: &[(&str, &[u8])] = &[("config.json", b"{}"), ("model.gguf", b"GGUF")];
    hub.repository("ada/open", &json!({}), file);
    hub.repository("ada/private", &json!({"private": true, "access": ["hf_ada"]}), file);
    hub.repository("ada/gated", &json!({"gated": "auto", "access": ["hf_ada"]}), file);
    hub.repository("ada/hidden", &json!({"gated": "manual", "gated_list": true, "access": ["hf_ada"]}), file);
    hub.repository("ada/blocked", &json!({"disabled": true}), file);
    let (nobody, bob, ada) = (client(&hub), client_as(&hub, "hf_bob"), client_as(&hub, "hf_ada"));
    let wrong = client_as(&hub, "stale");
    let unauthorized = |what: &str, sent| HubError::Unauthorized { what: what.to_owned(), sent };
    let no_access = |what: &str, name: &str, sent| HubError::Forbidden {
        what: what.to_owned(),
        sent,
        page: format!("{}/{name}", hub.endpoint()),
    };
    let forbidden = |what: &str, name: &str| no_access(what, name, true);
    let unsent = |what: &str, name: &str| no_access(what, name, false);
    let missing = |name: &str| HubError::NoRepository { repository: name.to_owned() };

    assert_eq!(refused(nobody.repository("ada/missing", None).await), unauthorized("ada/missing", false));
    assert_eq!(refused(nobody.repository("ada/private", None).await), unauthorized("ada/private", false));
    assert_eq!(refused(bob.repository("ada/missing", None).await), missing("ada/missing"));
    assert_eq!(refused(bob.repository("ada/private", None).await), missing("ada/private"));
    assert_eq!(refused(wrong.repository("ada/open", None).await), unauthorized("ada/open", true));
    assert!(ada.repository("ada/private", None).await.is_ok());

    // What is gated can be listed by everyone, unless the list is gated too.
    let commit = nobody.repository("ada/gated", None).await.expect("listed").commit;
    for name in ["config.json", "model.gguf"] {
        let what = format!("ada/gated/{name}");
        assert_eq!(refused(nobody.read("ada/gated", &commit, name, 0, 4).await), unsent(&what, "ada/gated"));
        assert_eq!(refused(bob.read("ada/gated", &commit, name, 0, 4).await), forbidden(&what, "ada/gated"));
        assert!(bob.open("ada/gated", &commit, name, 0).await.is_err());
        assert!(!ada.read("ada/gated", &commit, name, 0, 4).await.expect("read").is_empty());
    }
    assert_eq!(refused(nobody.repository("ada/hidden", None).await), unsent("ada/hidden", "ada/hidden"));
    assert_eq!(refused(bob.repository("ada/hidden", None).await), forbidden("ada/hidden", "ada/hidden"));
    assert!(ada.repository("ada/hidden", None).await.is_ok());
    assert_eq!(
        refused(ada.repository("ada/blocked", None).await),
        HubError::Disabled { repository: "ada/blocked".to_owned() }
    );

    let no_revision =
        |revision: &str| HubError::NoRevision { repository: "ada/open".to_owned(), revision: revision.to_owned() };
    for revision in ["nope", OLD, "refs/pr/7"] {
        assert_eq!(refused(ada.repository("ada/open", Some(revision)).await), no_revision(revision));
    }
    assert_eq!(refused(ada.read("ada/open", OLD, "model.gguf", 0, 4).await), no_revision(OLD));
    let head = hub.commit("ada/open");
    assert_eq!(
        refused(ada.read("ada/open", &head, "no.gguf", 0, 4).await),
        HubError::NoFile { repository: "ada/open".to_owned(), file: "no.gguf".to_owned() }
    );

    // None of these was asked twice, and names that lead elsewhere not at all.
    let before = hub.requests();
    assert!(before.iter().filter(|request| request.path.contains("/missing")).count() == 2);
    for name in ["", "..", "a/../b", "a/b/c", "a b", "a/b?x=y"] {
        assert_eq!(refused(ada.repository(name, None).await), missing(name));
    }
    for revision in ["", ".", "..", "a\nb"] {
        assert_eq!(refused(ada.repository("ada/open", Some(revision)).await), no_revision(revision));
    }
    for name in ["../open/config.json", "/etc/passwd", "a//b"] {
        assert!(matches!(refused(ada.read("ada/open", &head, name, 0, 4).await), HubError::NoFile { .. }));
    }
    assert_eq!(hub.requests().len(), before.len());
}

#[tokio::test]
async fn a_renamed_repository_says_its_new_name() {
    let hub = StandInHub::start();
    hub.repository("bigco/New-Name", &json!({"renamed_from": ["ada/old", "gpt2"]}), &[("m.gguf", b"GGUF")]);
    let client = client(&hub);
    for name in ["ada/old", "gpt2", "BigCo/new-name"] {
        let found = client.repository(name, None).await.expect("found");
        assert_eq!(found.repository, "bigco/New-Name");
        assert_eq!(client.read(name, &found.commit, "m.gguf", 0, 9).await.expect("read"), b"GGUF", "{name}");
    }
}

#[tokio::test]
async fn ten_thousand_files_come_in_pages() {
    let hub = StandInHub::start();
    hub.repository("ada/many", &json!({"many": {"count": 10_500}}), &[("config.json", b"{}")]);
    let found = client(&hub).repository("ada/many", None).await.expect("found");
    assert_eq!(found.files.len(), 10_501);
    assert!(found.files.is_sorted_by(|a, b| a.name < b.name));
    let pages = hub.requests().iter().filter(|request| request.path.contains("/tree/")).count();
    assert_eq!(pages, 11, "10,501 files and a folder");
}

#[tokio::test]
async fn derivatives_are_those_of_one_owner_and_base() {
    let hub = StandInHub::start_with(&HubOptions { page: 2, ..HubOptions::default() });
    let quantised = |base: &str| json!({"base_model": base, "relation": "quantized"});
    for name in ["quant/c", "quant/a", "quant/b", "quant/e", "quant/d"] {
        hub.repository(name, &quantised("big/Base"), &[]);
    }
    hub.repository("quant/other", &quantised("big/Other"), &[]);
    hub.repository("quant/tuned", &json!({"base_model": "big/Base", "relation": "finetune"}), &[]);
    hub.repository("stranger/x", &quantised("big/Base"), &[]);
    let client = client(&hub);
    let found = client.quantised_by("big/Base", "quant").await.expect("found");
    assert_eq!(found, ["quant/a", "quant/b", "quant/c", "quant/d", "quant/e"]);
    assert!(client.quantised_by("big/Base", "nobody").await.expect("found").is_empty());
    // A hub that ignores the filter does not widen whom is trusted.
    hub.fault(json!({"kind": "json", "on": "search", "body": [{"id": "stranger/x"}, {"id": "Quant/z"}]}));
    assert_eq!(client.quantised_by("big/Base", "quant").await.expect("found"), ["Quant/z"]);
}
