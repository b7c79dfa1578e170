//! Reading the SSH config files and what they include. A file that others may write decides nothing: it is an error,
//! as in ssh.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::client_config::ConfigError;
use super::config_lines::{ConfigFile, parse};
use crate::base::{expand_home, glob_bytes};
use crate::edge::own_uid;

/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// Most files, whatever includes what.
const MAX_FILES: usize = 1000;
/// How deep includes go, as in ssh.
const MAX_DEPTH: usize = 16;

/// The user's file, then the machine's. Missing ones are empty.
pub(super) fn read(home: &Path, user: &Path, system: &Path) -> Result<Vec<ConfigFile>, ConfigError> {
    let mut files = Vec::new();
    let mut budget = MAX_FILES;
    for (path, folder, checked) in [(user, home.join(".ssh"), true), (system, folder_of(system), false)] {
        match one(path, &folder, home, checked, 0, &mut budget) {
            Ok(Some(file)) => files.push(file),
            Ok(None) => {}
            Err(reason) => {
                let hint = "repair it; flock reads it as ssh does, and goes nowhere by half of it.".to_owned();
                return Err(ConfigError { place: path.display().to_string(), reason, hint });
            }
        }
    }
    Ok(files)
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_path_buf()
}

fn one(
    path: &Path,
    folder: &Path,
    home: &Path,
    checked: bool,
    depth: usize,
    budget: &mut usize,
) -> Result<Option<ConfigFile>, String> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let metadata = file.metadata().map_err(|error| format!("cannot be read: {error}"))?;
    if !metadata.is_file() {
        return Ok(None);
    }
    if checked {
        let me = own_uid().unwrap_or(metadata.uid());
        if metadata.uid() != 0 && metadata.uid() != me {
            return Err("it belongs to another user".to_owned());
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(format!("others may write it (mode {:o}); chmod go-w", metadata.mode() & 0o777));
        }
    }
    *budget = budget.checked_sub(1).ok_or_else(|| format!("more than {MAX_FILES} files are included"))?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("more than {MAX_FILE} bytes"));
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut include = |pattern: &str| {
        if depth + 1 >= MAX_DEPTH {
            return Err(format!("files include each other {MAX_DEPTH} deep"));
        }
        let pattern = expand_home(pattern, home.to_str());
        let mut files = Vec::new();
        for path in named(&folder.join(pattern))? {
            let read = one(&path, folder, home, checked, depth + 1, budget);
            files.extend(read.map_err(|problem| format!("{}: {problem}", path.display()))?);
        }
        Ok(files)
    };
    Ok(Some(parse(&path.display().to_string(), &text, &mut include)))
}

/// The files that a pattern names, in order.
fn named(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.components() {
        let std::path::Component::Normal(part) = part else { continue };
        let part = part.to_str().ok_or("an `Include` that is not UTF-8")?;
        if part.contains(['[', '{']) {
            return Err(format!("`{part}` in an `Include`: only `*` and `?` are read"));
        }
        if !part.contains(['*', '?']) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let mut next = Vec::new();
        for folder in found {
            let names = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let names = names.filter(|entry| entry.file_name().to_str().is_some_and(|name| fits_file(part, name)));
            next.extend(names.map(|entry| entry.path()));
        }
        next.sort();
        found = next;
    }
    Ok(found)
}

/// Whether a name fits a pattern of a path component, as the shell has it: a leading dot is written out.
fn fits_file(pattern: &str, name: &str) -> bool {
    (!name.starts_with('.') || pattern.starts_with('.')) && glob_bytes(pattern, name)
}
