//! Bytes of files.

use flock::ports::Hub as _;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use super::{client, pattern};
use crate::support::hub::StandInHub;

#[tokio::test]
async fn ranges_and_whole_files_are_the_files_bytes() {
    let hub = StandInHub::start();
    let weights = pattern(300_000);
    hub.repository("ada/m", &json!({}), &[("m.gguf", &weights), ("config.json", b"{\"a\": 1}"), ("empty.gguf", b"")]);
    let client = client(&hub);
    let commit = hub.commit("ada/m");
    for (offset, length) in
        [(0, 1), (0, 300_000), (5, 100), (299_990, 100), (300_000, 10), (400_000, 1), (7, 0), (3, u64::MAX)]
    {
        let got = client.read("ada/m", &commit, "m.gguf", offset, length).await.expect("read");
        let end = offset.saturating_add(length).min(300_000);
        let expected = weights.get(offset as usize..end as usize).unwrap_or_default();
        assert!(got == expected, "{offset} {length}: {} bytes", got.len());
    }
    assert_eq!(client.read("ada/m", &commit, "config.json", 1, 3).await.expect("read"), b"\"a\"");
    assert_eq!(client.read("ada/m", &commit, "empty.gguf", 0, 10).await.expect("read"), b"");
    for offset in [0_usize, 1, 299_999, 300_000] {
        let mut bytes = Vec::new();
        let mut file = client.open("ada/m", &commit, "m.gguf", offset as u64).await.expect("opened");
        file.read_to_end(&mut bytes).await.expect("read");
        assert!(bytes == weights[offset..], "{offset}: {} bytes", bytes.len());
    }
}
