//! Weights that lie on the node already (`on-node:PATH`): listed and read by their headers, never whole.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::layout::expand_home;
use crate::base::Digest;
use crate::inventory::WeightsFound;
use crate::weights::{Inspect, Listing, Ranges, Variant, inspect};

/// Depth below the named folder.
const MAX_DEPTH: u32 = 3;
/// Files that are looked at; a model repository has a few hundred.
const MAX_FILES: usize = 20_000;
/// Bytes read at once.
const MAX_READ: u64 = 4 << 20;
/// Bytes of headers read from one set: tokenizers inside GGUF are the largest.
const MAX_TOTAL: u64 = 1 << 30;

/// What lies at the path: a folder, or one file with the shards that belong to it. File names are relative to
/// the folder, which for a file is the one it lies in.
pub fn on_node(path: &str, home: &Path) -> WeightsFound {
    let place = expand_home(path, home);
    let mut found = WeightsFound {
        source: format!("on-node:{path}"),
        revision: String::new(),
        path: None,
        files: Vec::new(),
        size_bytes: 0,
        complete: false,
        sha256: None,
        architecture: None,
        variants: Vec::new(),
        problem: None,
    };
    match read(&place, &mut found) {
        Ok(variants) => found.variants = variants,
        Err(problem) => found.problem = Some(problem),
    }
    found
}

fn read(place: &Path, found: &mut WeightsFound) -> Result<Vec<Variant>, String> {
    if !place.is_absolute() {
        return Err("the path is not absolute".into());
    }
    let meta = fs::metadata(place).map_err(|error| error.to_string())?;
    let mut files = Vec::new();
    let folder = if meta.is_dir() {
        list(place, "", 0, &mut files)?;
        place
    } else if !meta.is_file() {
        // Opening a pipe or a device could wait for ever.
        return Err("is neither a file nor a folder".into());
    } else {
        let folder = place.parent().unwrap_or(Path::new("/"));
        let name = place.file_name().and_then(|name| name.to_str()).ok_or("the file's name is not UTF-8")?;
        list_set(folder, name, meta.len(), &mut files)?;
        folder
    };
    files.sort();
    found.path = Some(folder.display().to_string());
    // Names and sizes: hashing hundreds of gigabytes in a probe is out of the question.
    found.revision = Digest::of_json(&files).to_string();
    found.size_bytes = files.iter().map(|(_, size)| size).sum();
    found.files = files.iter().map(|(name, _)| name.clone()).collect();
    let listing = Listing::new(files).map_err(|error| error.to_string())?;
    headers(folder, &listing)
}

/// The files below a folder. Hidden ones are left out; links are followed, as the hub's cache needs.
fn list(folder: &Path, prefix: &str, depth: u32, files: &mut Vec<(String, u64)>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        if meta.is_dir() && depth < MAX_DEPTH {
            list(&entry.path(), &format!("{name}/"), depth + 1, files)?;
        } else if meta.is_file() {
            if files.len() >= MAX_FILES {
                return Err(format!("more than {MAX_FILES} files"));
            }
            files.push((name, meta.len()));
        }
    }
    Ok(())
}

/// One file, with its siblings where its name says that it is a shard.
fn list_set(folder: &Path, name: &str, size: u64, files: &mut Vec<(String, u64)>) -> Result<(), String> {
    let Some(stem) = shard_stem(name) else {
        files.push((name.to_owned(), size));
        return Ok(());
    };
    let mut all = Vec::new();
    list(folder, "", MAX_DEPTH, &mut all)?;
    files.extend(all.into_iter().filter(|(other, _)| shard_stem(other) == Some(stem)));
    Ok(())
}

/// `NAME` of `NAME-00001-of-00002.gguf`, with the number of shards.
fn shard_stem(name: &str) -> Option<(&str, &str)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(count)).then_some((stem, count))
}

fn headers(folder: &Path, listing: &Listing) -> Result<Vec<Variant>, String> {
    let mut ranges = Ranges::new();
    let mut total = 0;
    loop {
        match inspect(listing, &ranges).map_err(|error| error.to_string())? {
            Inspect::Done(variants) => return Ok(variants),
            Inspect::Need { file, offset, length } => {
                let bytes = piece(&folder.join(&file), offset, length.clamp(1, MAX_READ))
                    .map_err(|error| format!("{file}: {error}"))?;
                total += bytes.len() as u64;
                if total > MAX_TOTAL {
                    return Err("the headers are longer than any model's".into());
                }
                ranges.insert(&file, offset, &bytes);
            }
        }
    }
}

fn piece(path: &Path, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = vec![0u8; usize::try_from(length).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::one_layer_gguf;

    #[test]
    fn shards_are_told_by_their_names() {
        assert_eq!(shard_stem("m-00001-of-00002.gguf"), Some(("m", "00002")));
        assert_eq!(shard_stem("best-of-breed.gguf"), None);
        assert_eq!(shard_stem("m.gguf"), None);
    }

    #[test]
    fn a_file_and_its_folder_are_read_by_their_headers() {
        let home = tempfile::tempdir().expect("a folder");
        let (header, size) = one_layer_gguf();
        fs::create_dir(home.path().join("m")).expect("made");
        let path = home.path().join("m/tiny.gguf");
        fs::write(&path, header).expect("written");
        File::options().write(true).open(&path).and_then(|file| file.set_len(size)).expect("as long as it says");
        fs::write(home.path().join("m/README.md"), b"about it").expect("written");
        let folder = on_node("~/m", home.path());
        assert!(folder.problem.is_none() && folder.variants.len() == 1, "{folder:?}");
        assert_eq!((folder.source.as_str(), folder.files.len()), ("on-node:~/m", 2));
        let file = on_node("~/m/tiny.gguf", home.path());
        assert_eq!((file.files.as_slice(), file.size_bytes), (["tiny.gguf".to_owned()].as_slice(), size));
        assert_eq!(file.variants[0].start_file.as_deref(), Some("tiny.gguf"));
        assert_eq!(file.path, folder.path);
        assert_ne!(file.revision, folder.revision);
    }

    #[test]
    fn what_is_no_model_is_a_problem_and_not_a_failure() {
        let home = tempfile::tempdir().expect("a folder");
        let missing = on_node("/does/not/exist.gguf", home.path());
        assert!(missing.problem.is_some() && missing.variants.is_empty());
        assert!(on_node("relative", home.path()).problem.is_some());
        // A socket here, as a pipe cannot be made without help; neither is opened.
        let _socket = std::os::unix::net::UnixListener::bind(home.path().join("m.gguf")).expect("bound");
        let socket = on_node("~/m.gguf", home.path());
        assert_eq!(socket.problem.as_deref(), Some("is neither a file nor a folder"));
        fs::create_dir(home.path().join("m")).expect("made");
        fs::write(home.path().join("m/broken.gguf"), b"GGUX").expect("written");
        fs::write(home.path().join("m/.hidden"), b"x").expect("written");
        let broken = on_node("~/m", home.path());
        assert!(broken.problem.is_some());
        assert_eq!((broken.files.as_slice(), broken.size_bytes), (["broken.gguf".to_owned()].as_slice(), 4));
    }
}
