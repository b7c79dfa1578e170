//! Published models on a stand-in hub: repositories whose files are generated headers, followed by nothing.

use serde_json::{Map, Value, json};

use crate::headers::HeaderFile;
use crate::support::hub::StandInHub;

/// Adds a repository of generated files, those of each part in a folder of their own (or, with an empty name, in none).
/// What follows a header is made up, and so is its digest. `card` says what else is known of it, as the stand-in's `.repo.json`.
pub fn publish(hub: &StandInHub, repository: &str, card: &Value, parts: &[(&str, Vec<HeaderFile>)]) {
    let mut made_up = Map::new();
    let mut whole: Vec<(String, &[u8])> = Vec::new();
    for (folder, files) in parts {
        for file in files {
            let name = if folder.is_empty() { file.name.clone() } else { format!("{folder}/{}", file.name) };
            if file.head.len() as u64 == file.size {
                whole.push((name, &file.head));
            } else {
                let header = format!("headers/{name}");
                whole.push((format!(".flock/{header}"), &file.head));
                made_up.insert(
                    name,
                    json!({ "size": file.size, "header": header, "sha256": format!("{:064x}", file.size) }),
                );
            }
        }
    }
    let whole: Vec<(&str, &[u8])> = whole.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let mut card = card.clone();
    card["files"] = Value::Object(made_up);
    hub.repository(repository, &card, &whole);
}
