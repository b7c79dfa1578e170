//! What is asked once.

use flock::edge::{HfHub, HubSettings};
use flock::ports::{Hub as _, HubError};
use serde_json::json;

use super::{pattern, refused, settings};
use crate::support::hub::StandInHub;

#[tokio::test]
async fn a_second_look_asks_for_the_revision_alone_and_a_pinned_one_for_nothing() {
    let hub = StandInHub::start();
    let header = pattern(5000);
    let card = json!({"license": "mit", "files": {"m.gguf": {"size": 40_000_000_000_u64, "header": "h"}}, "gated": "auto",
                      "access": ["hf_secret"], "renamed_from": ["ada/old"]});
    hub.repository("ada/m", &card, &[(".flock/h", &header), ("config.json", b"{}")]);
    let folder = tempfile::tempdir().expect("a folder");
    let with = |offline: bool| {
        let token = Some(flock::base::Secret::new("hf_secret".to_owned()));
        let cache = Some(folder.path().join("hub"));
        HfHub::new(HubSettings { cache, token, offline, ..settings(&hub) }).expect("sound settings")
    };
    let look = async |client: &HfHub, name: &str, revision: Option<&str>| {
        let found = client.repository(name, revision).await.expect("found");
        for (file, offset, length) in [("m.gguf", 0, 8), ("m.gguf", 8, 4992), ("config.json", 0, 1000)] {
            let bytes = client.read(name, &found.commit, file, offset, length).await.expect("read");
            let expected = if file == "m.gguf" { &header[offset as usize..(offset + length) as usize] } else { b"{}" };
            assert!(bytes == expected);
        }
        found
    };
    let first = look(&with(false), "ada/old", None).await;
    let after_first = hub.requests().len();
    assert!(after_first > 5);
    // A whole new client, as the next run has.
    assert_eq!(look(&with(false), "ada/m", None).await, first);
    let second: Vec<_> = hub.requests_since(after_first).into_iter().map(|request| request.path).collect();
    // The bytes were read under the old name, so they are asked for once more under the new one.
    assert_eq!(second.iter().filter(|path| path.contains("/tree/")).count(), 0, "{second:?}");
    let after_second = hub.requests().len();
    assert_eq!(look(&with(false), "ada/m", None).await, first);
    let third: Vec<_> = hub.requests_since(after_second).into_iter().map(|request| request.path).collect();
    assert_eq!(third, ["/api/models/ada/m"]);

    // Pinned, without a hub.
    let after_third = hub.requests().len();
    for name in ["ada/m", "ada/old"] {
        assert_eq!(look(&with(true), name, Some(&first.commit)).await, first);
    }
    assert_eq!(hub.requests().len(), after_third);
    let offline = with(true);
    assert!(matches!(refused(offline.repository("ada/m", None).await), HubError::Unreachable { .. }));
    assert!(matches!(
        refused(offline.read("ada/m", &first.commit, "m.gguf", 9, 1).await),
        HubError::Unreachable { .. }
    ));

    // The token is in no file of it, and what is damaged is asked for again.
    let mut damaged = 0;
    for commit in std::fs::read_dir(folder.path().join("hub/v1")).expect("there").flatten() {
        for file in std::fs::read_dir(commit.path()).expect("there").flatten() {
            let bytes = std::fs::read(file.path()).expect("there");
            assert!(!String::from_utf8_lossy(&bytes).contains("hf_secret"));
            std::fs::write(file.path(), &bytes[..bytes.len() / 2]).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged >= 5, "{damaged}");
    let before = hub.requests().len();
    assert_eq!(look(&with(false), "ada/m", Some(&first.commit)).await, first);
    assert!(hub.requests_since(before).iter().any(|request| request.path.contains("/tree/")));
    assert_eq!(look(&with(true), "ada/m", Some(&first.commit)).await, first);
}

#[tokio::test]
async fn a_branch_that_moved_is_seen() {
    let hub = StandInHub::start();
    let (one, two) = ("a".repeat(40), "b".repeat(40));
    let (in_one, in_two) = (format!(".flock/{one}/m.gguf"), format!(".flock/{two}/m.gguf"));
    let at = |commit: &str| json!({"commit": commit, "commits": [one, two]});
    hub.repository("ada/m", &at(&one), &[(&in_one, b"one!"), (&in_two, b"twofold!")]);
    let folder = tempfile::tempdir().expect("a folder");
    let client =
        HfHub::new(HubSettings { cache: Some(folder.path().to_owned()), ..settings(&hub) }).expect("sound settings");
    let first = client.repository("ada/m", None).await.expect("found");
    assert_eq!(client.read("ada/m", "main", "m.gguf", 0, 99).await.expect("read"), b"one!");
    hub.repository("ada/m", &at(&two), &[]);
    let second = client.repository("ada/m", Some("main")).await.expect("found");
    assert_eq!((first.commit, second.commit), (one.clone(), two.clone()));
    assert_eq!((first.files[0].size_bytes, second.files[0].size_bytes), (4, 8));
    assert_eq!(client.read("ada/m", "main", "m.gguf", 0, 99).await.expect("read"), b"twofold!");
    assert_eq!(client.repository("ada/m", Some(&one)).await.expect("found").files[0].size_bytes, 4);
}

#[tokio::test]
async fn the_headers_of_140_gb_are_a_few_hundred_kilobytes() {
    let hub = StandInHub::start();
    let header = pattern(9_000);
    let shards = 30;
    let name = |shard: usize| format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
    let files: serde_json::Map<_, _> = (0..shards)
        .map(|shard| (name(shard), json!({"size": 4_700_000_000_u64, "seed": shard, "header": "h"})))
        .collect();
    hub.repository("big/Llama-70B", &json!({"files": files}), &[(".flock/h", &header)]);
    let client = HfHub::new(settings(&hub)).expect("sound settings");
    let found = client.repository("big/Llama-70B", None).await.expect("found");
    let total: u64 = found.files.iter().map(|file| file.size_bytes).sum();
    assert_eq!(total, 141_000_000_000);
    let reads = (0..shards).map(|shard| {
        let (client, commit, header) = (&client, &found.commit, &header);
        async move {
            let name = name(shard);
            let mut bytes = client.read("big/Llama-70B", commit, &name, 0, 8).await.expect("read");
            bytes.extend(client.read("big/Llama-70B", commit, &name, 8, 8_992).await.expect("read"));
            assert!(bytes == *header);
        }
    });
    futures::future::join_all(reads).await;
    let sent: u64 = hub.requests().iter().map(|request| request.bytes).sum();
    assert!(sent < 400_000, "{sent} bytes");
    println!("{sent} bytes were sent of {total}");
}
