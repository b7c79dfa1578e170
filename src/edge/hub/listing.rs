//! Revisions, model cards, the files of a commit, and what others made of a model.

use std::collections::BTreeSet;

use hf_hub::repository::ModelInfo;
use serde::Deserialize;
use serde_json::Value;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::errors::{About, Failure, shortened};
use super::names::{is_commit, is_path, is_repository};
use super::requests::Requests;
use crate::ports::{HubError, HubFile};

/// Most files of a repository, and most repositories of one owner made from one base.
const MAX_ENTRIES: usize = 100_000;
/// Largest size that a file is believed to have: 1 PiB.
const MAX_SIZE: u64 = 1 << 50;

/// What the hub says about a revision, without its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    pub(super) repository: String,
    pub(super) commit: String,
    pub(super) gated: bool,
    pub(super) license: Option<String>,
    pub(super) base_models: Vec<String>,
}

impl Requests {
    /// What a revision is now.
    pub(super) async fn revision(&self, repository: &str, revision: Option<&str>) -> Result<Revision, HubError> {
        let about = About { repository, revision, file: None };
        let mut patience = self.patience();
        loop {
            match self.ask_revision(about).await {
                Ok(revision) => return Ok(revision),
                Err(failure) => patience.again(failure).await?,
            }
        }
    }

    async fn ask_revision(&self, about: About<'_>) -> Result<Revision, Failure> {
        let _turn = self.turn().await?;
        let (owner, name) = hf_hub::split_id(about.repository);
        let model = self.hf.model(owner, name);
        // Without it the answer lists all files, which come with their sizes from the tree.
        let expand = ["author", "cardData", "disabled", "gated", "private", "sha", "tags"].map(str::to_owned).to_vec();
        let work = async {
            let asked = model.info().maybe_revision(about.revision.map(str::to_owned)).expand(expand).send();
            // hf-hub logs each failure as an error, with its address; what matters of it is in ours.
            let info = asked.with_subscriber(NoSubscriber::default()).await;
            info.map_err(|error| self.interpreter.hf_hub(error, about))
        };
        let info = self.within(self.limits.request, work).await?;
        tracing::debug!(repository = about.repository, revision = about.revision, sha = info.sha, "asked the hub");
        self.read_info(info, about).map_err(Failure::Final)
    }

    fn read_info(&self, info: ModelInfo, about: About<'_>) -> Result<Revision, HubError> {
        let nonsense = |what: &str, text: &str| self.interpreter.nonsense(format!("{what} \"{}\"", shortened(text)));
        if !is_repository(&info.id) {
            return Err(nonsense("a repository is called", &info.id));
        }
        if info.disabled == Some(true) {
            return Err(HubError::Disabled { repository: info.id });
        }
        let commit = info.sha.unwrap_or_default();
        if !is_commit(&commit) {
            return Err(nonsense(&format!("{} has the commit", about.repository), &commit));
        }
        let tags = info.tags.unwrap_or_default();
        let card = info.card_data.unwrap_or_default();
        Ok(Revision {
            repository: info.id,
            commit,
            // `false`, `"auto"` or `"manual"`.
            gated: !matches!(info.gated, None | Some(Value::Null | Value::Bool(false))),
            license: license(&card, &tags),
            base_models: base_models(&card, &tags),
        })
    }

    /// The files of a commit, sorted.
    ///
    /// hf-hub's `list_tree` drops the digests: it looks for `lfs.sha256`, and the hub calls it `lfs.oid` here.
    pub(super) async fn files(&self, repository: &str, commit: &str) -> Result<Vec<HubFile>, HubError> {
        let parts = ["api", "models"].into_iter().chain(repository.split('/')).chain(["tree", commit]);
        let mut url = self.url(parts);
        url.query_pairs_mut().append_pair("recursive", "true");
        let about = About { repository, revision: Some(commit), file: None };
        let entries = self.pages::<Entry>(url, MAX_ENTRIES, about).await?;
        let mut files = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(file) = self.read_entry(entry)? {
                files.push(file);
            }
        }
        files.sort_unstable_by(|a: &HubFile, b| a.name.cmp(&b.name));
        if let Some(pair) = files.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(self.interpreter.nonsense(format!("it lists the file \"{}\" twice", pair[0].name)));
        }
        Ok(files)
    }

    fn read_entry(&self, entry: Entry) -> Result<Option<HubFile>, HubError> {
        if entry.kind != "file" {
            return Ok(None);
        }
        if !is_path(&entry.path) {
            return Err(self.interpreter.nonsense(format!("it lists a file \"{}\"", shortened(&entry.path))));
        }
        let size = entry.lfs.as_ref().and_then(|lfs| lfs.size).or(entry.size).filter(|size| *size <= MAX_SIZE);
        let Some(size_bytes) = size else {
            return Err(self.interpreter.nonsense(format!("the file \"{}\" has no size that can be", entry.path)));
        };
        let digest = entry.lfs.and_then(|lfs| lfs.oid.or(lfs.sha256));
        let sha256 = match digest.as_deref().map(|digest| digest.strip_prefix("sha256:").unwrap_or(digest)) {
            None => None,
            Some(hex) if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Some(format!("sha256:{}", hex.to_ascii_lowercase()))
            }
            Some(other) => {
                let reason = format!("the file \"{}\" has the digest \"{}\"", entry.path, shortened(other));
                return Err(self.interpreter.nonsense(reason));
            }
        };
        Ok(Some(HubFile { name: entry.path, size_bytes, sha256 }))
    }

    /// Repositories of one owner that the hub knows as quantised from a base model. The tag is the one that the hub
    /// derives from a card's `base_model` and `base_model_relation`.
    pub(super) async fn derivatives(&self, base: &str, owner: &str) -> Result<Vec<String>, HubError> {
        let mut url = self.url(["api", "models"]);
        url.query_pairs_mut()
            .append_pair("author", owner)
            .append_pair("filter", &format!("base_model:quantized:{base}"))
            .append_pair("limit", "1000");
        let about = About { repository: base, revision: None, file: None };
        let found = self.pages::<Found>(url, MAX_ENTRIES, about).await?;
        let mut names = BTreeSet::new();
        for Found { id } in found {
            if !is_repository(&id) {
                return Err(self.interpreter.nonsense(format!("it finds a repository \"{}\"", shortened(&id))));
            }
            // Trust is by owner: a hub that ignores the filter must not widen it.
            if id.split_once('/').is_some_and(|(found, _)| found.eq_ignore_ascii_case(owner)) {
                names.insert(id);
            }
        }
        Ok(names.into_iter().collect())
    }
}

/// An entry of a tree. `oid` beside `lfs` is git's own id of the file, or of the pointer to it.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Debug, Deserialize)]
struct LargeFile {
    oid: Option<String>,
    sha256: Option<String>,
    size: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Found {
    id: String,
}

/// The card's `license`; for `other`, the name that goes with it.
fn license(card: &Value, tags: &[String]) -> Option<String> {
    let text = |key: &str| {
        let value = card.get(key)?;
        let value = value.as_array().and_then(|several| several.first()).unwrap_or(value);
        value.as_str().map(str::to_owned)
    };
    let named = text("license").or_else(|| tags.iter().find_map(|tag| tag.strip_prefix("license:")).map(str::to_owned));
    let named = match named {
        Some(other) if other == "other" => text("license_name").or(Some(other)),
        named => named,
    };
    named.map(|name| shortened(&name)).filter(|name| !name.is_empty())
}

/// The card's `base_model`, one or several; else those of the tags `base_model:OWNER/NAME`.
fn base_models(card: &Value, tags: &[String]) -> Vec<String> {
    let stated = match card.get("base_model") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => tags.iter().filter_map(|tag| tag.strip_prefix("base_model:")).collect(),
    };
    let mut known = BTreeSet::new();
    let models = stated.into_iter().map(str::trim).filter(|name| is_repository(name) && known.insert(*name));
    models.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_card_says_its_licence_and_what_it_was_made_from() {
        let tags = vec!["license:mit".to_owned(), "base_model:a/b".to_owned(), "base_model:quantized:a/b".to_owned()];
        let cases = [
            (json!({"license": "apache-2.0", "base_model": "x/y"}), Some("apache-2.0"), vec!["x/y"]),
            (
                json!({"license": "other", "license_name": "deepseek", "base_model": ["x/y", "x/z", "x/y"]}),
                Some("deepseek"),
                vec!["x/y", "x/z"],
            ),
            (json!({"license": "other"}), Some("other"), vec!["a/b"]),
            (json!({"license": ["mit", "gpl"], "base_model": 7}), Some("mit"), vec!["a/b"]),
            (json!({"license": 3, "base_model": "../etc"}), Some("mit"), vec![]),
            (Value::Null, Some("mit"), vec!["a/b"]),
        ];
        for (card, expected_license, expected_bases) in cases {
            assert_eq!(license(&card, &tags).as_deref(), expected_license, "{card}");
            assert_eq!(base_models(&card, &tags), expected_bases, "{card}");
        }
        assert_eq!(license(&json!({}), &[]), None);
    }
}
