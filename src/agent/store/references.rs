//! What the instances of every cluster and node of this home read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::agent::files::read_json;
use crate::agent::state::FORMAT;
use crate::inventory::WeightsRef;

/// An instance that reads weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Reader {
    /// Its model and `CLUSTER/NODE/INSTANCE`, for people.
    pub name: String,
    /// What it reads.
    pub weights: WeightsRef,
}

/// All that matters here of `desired.json`, in whatever version of the agent.
#[derive(Deserialize)]
struct Desired {
    #[serde(default)]
    format: u32,
    #[serde(default)]
    instances: BTreeMap<String, Spec>,
}

#[derive(Deserialize)]
struct Record {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    model: String,
    #[serde(default)]
    weights: Vec<WeightsRef>,
}

/// Every reader below `home`, or which state cannot be read: then nobody knows what is read.
pub fn readers(home: &Path) -> Result<Vec<Reader>, String> {
    let mut readers = Vec::new();
    for cluster in folders(&home.join(".local/share/flock"))? {
        // The store itself; no cluster may have its name.
        if cluster.file_name().is_some_and(|name| name == "weights") {
            continue;
        }
        for node in folders(&cluster)? {
            let path = node.join("desired.json");
            let found = read_json::<Desired>(&path).map_err(|error| error.chain())?;
            if let Some(newer) = found.as_ref().filter(|found| found.format > FORMAT) {
                let format = newer.format;
                return Err(format!("{} is of format {format}, which this agent does not know", path.display()));
            }
            let desired = found.map(|found| found.instances).unwrap_or_default();
            // What is being stopped reads until it is gone.
            for folder in folders(&node.join("instances"))? {
                let Some(id) = folder.file_name().and_then(|name| name.to_str()) else { continue };
                if desired.contains_key(id) {
                    continue;
                }
                let record = read_json::<Record>(&folder.join("state.json")).map_err(|error| error.chain())?;
                add(&mut readers, &cluster, &node, id, record.map(|record| record.spec));
            }
            for (id, spec) in desired {
                add(&mut readers, &cluster, &node, &id, Some(spec));
            }
        }
    }
    Ok(readers)
}

fn add(readers: &mut Vec<Reader>, cluster: &Path, node: &Path, id: &str, spec: Option<Spec>) {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let place = format!("{}/{}/{id}", name(cluster), name(node));
    let Some(Spec { model, weights: sets }) = spec else { return };
    let name = if model.is_empty() { place } else { format!("{model} ({place})") };
    readers.extend(sets.into_iter().map(|weights| Reader { name: name.clone(), weights }));
}

/// The folders in a folder; none where there is no such folder.
fn folders(path: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        // A link that leads nowhere may lead to a disk that is not there now.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(format!("reading {}: {error}", path.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| format!("reading {}: {error}", path.display()))?;
        let path = entry.path();
        // Through links: somebody may have moved a state folder to another disk.
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => found.push(path),
            Err(error) if fs::symlink_metadata(&path).is_ok() => {
                return Err(format!("reading {}: {error}", path.display()));
            }
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}
