//! Looks for engines: the config's paths, then `PATH`, then the user's own program folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::files::{read_json, write_json};
use super::layout::expand_home;
use crate::base::EngineKind;
use crate::engine::{parse_version, program_names, version_arguments};
use crate::inventory::{EngineFound, EngineQuery};

/// How long a program may take to print its version: vLLM imports torch first.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);
/// Most bytes of its output that are read.
const VERSION_BYTES: u64 = 64 << 10;

/// Versions by path, modification time, size and inode.
type Cache = BTreeMap<String, String>;

/// All engines that the queries find, in the order of the queries.
pub fn find(queries: &[EngineQuery], home: &Path) -> Vec<EngineFound> {
    // Beside the state folders, because it holds for every cluster and because looking makes none.
    let path = home.join(".cache/flock-agent/engine-versions.json");
    let mut cache: Cache = read_json(&path).ok().flatten().unwrap_or_default();
    let before = cache.clone();
    let programs: Vec<(EngineKind, PathBuf)> = queries
        .iter()
        .flat_map(|query| candidates(query, home).into_iter().map(|program| (query.kind, program)))
        .collect();
    // All at once: each may take seconds to import its libraries.
    let answers: Vec<(EngineFound, Option<String>)> = thread::scope(|scope| {
        let asked: Vec<_> =
            programs.iter().map(|(kind, program)| scope.spawn(|| ask(*kind, program, &before))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
    });
    for (found, key) in &answers {
        if let (Some(key), Some(version)) = (key, &found.version) {
            cache.retain(|known, _| !known.starts_with(&format!("{}|", found.path)));
            cache.insert(key.clone(), version.clone());
        }
    }
    if cache != before {
        // A cache that cannot be written costs time, not truth.
        let _ = write_json(&path, &cache);
    }
    answers.into_iter().map(|(found, _)| found).collect()
}

/// Programs to ask: every path of the config, missing ones too, then the first hit per name on `PATH`.
fn candidates(query: &EngineQuery, home: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = query.paths.iter().map(|path| expand_home(path, home)).collect();
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&search).chain([home.join(".local/bin")]).collect();
    for name in program_names(query.kind) {
        list.extend(folders.iter().map(|folder| folder.join(name)).find(|program| is_program(program)));
    }
    let mut seen = Vec::new();
    list.retain(|program| {
        let real = program.canonicalize().unwrap_or_else(|_| program.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    });
    list
}

fn is_program(path: &Path) -> bool {
    path.is_absolute() && fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// One program, and the key of its version where the cache does not have it yet.
fn ask(kind: EngineKind, program: &Path, cache: &Cache) -> (EngineFound, Option<String>) {
    let path = program.display().to_string();
    match fs::metadata(program) {
        Err(error) => (EngineFound { kind, version: None, path, problem: Some(error.to_string()) }, None),
        Ok(_) if !is_program(program) => {
            let problem = Some("is not an executable file".to_owned());
            (EngineFound { kind, version: None, path, problem }, None)
        }
        Ok(meta) => {
            let key = format!("{path}|{}.{}|{}|{}", meta.mtime(), meta.mtime_nsec(), meta.size(), meta.ino());
            if let Some(version) = cache.get(&key) {
                return (EngineFound { kind, version: Some(version.clone()), path, problem: None }, None);
            }
            match version_of(kind, program) {
                Ok(version) => (EngineFound { kind, version: Some(version), path, problem: None }, Some(key)),
                Err(problem) => (EngineFound { kind, version: None, path, problem: Some(problem) }, None),
            }
        }
    }
}

fn version_of(kind: EngineKind, program: &Path) -> Result<String, String> {
    let output = version_output(program, version_arguments(kind))?;
    parse_version(kind, &output).ok_or_else(|| {
        let last = output.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        let last: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
        format!("printed no version but: {last}")
    })
}

/// What the program prints, both streams together, in the order it came.
fn version_output(program: &Path, arguments: &[&str]) -> Result<String, String> {
    // A file, not a pipe: a grandchild that keeps a pipe open would outlast the deadline.
    let mut output = scratch_file().map_err(|error| format!("no scratch file for its output: {error}"))?;
    let copy = |file: &File| file.try_clone().map_err(|error| error.to_string());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&output)?);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if started.elapsed() < VERSION_DEADLINE => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) | Err(_) => break None,
        }
    };
    if status.is_none() {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
        return Err(format!("did not print its version within {} s", VERSION_DEADLINE.as_secs()));
    }
    let mut text = Vec::new();
    output.rewind().map_err(|error| error.to_string())?;
    output.take(VERSION_BYTES).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A file without a name.
fn scratch_file() -> std::io::Result<File> {
    let folder = std::env::temp_dir();
    let flags = i32::try_from(rustix::fs::OFlags::TMPFILE.bits()).unwrap_or(0);
    let unnamed = fs::OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(&folder);
    unnamed.or_else(|_| {
        let name = super::files::random_hex(8).map_err(|error| std::io::Error::other(error.chain()))?;
        let path = folder.join(format!("flock-agent-{name}"));
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(folder: &Path, name: &str, body: &str) -> String {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("made executable");
        path.display().to_string()
    }

    #[test]
    fn versions_and_problems_are_told_apart() {
        let home = tempfile::tempdir().expect("a home");
        let good = script(home.path(), "good", "echo 'version: 4242 (abc)' >&2");
        let mute = script(home.path(), "mute", "exit 3");
        let missing = home.path().join("missing").display().to_string();
        let query = EngineQuery { kind: EngineKind::LlamaCpp, paths: vec![good.clone(), mute, missing] };
        let found = find(std::slice::from_ref(&query), home.path());
        assert!(found[0].version.as_deref().is_some_and(|version| version.contains("4242")), "{found:?}");
        assert!(found[1].version.is_none() && found[1].problem.is_some());
        assert!(found[2].version.is_none() && found[2].problem.is_some());
        // The second time it is not run: the cache knows the file.
        let cache = home.path().join(".cache/flock-agent/engine-versions.json");
        let text = fs::read_to_string(&cache).expect("cached");
        fs::write(&cache, text.replace("4242", "4343")).expect("changed");
        assert!(find(&[query], home.path())[0].version.as_deref().is_some_and(|version| version.contains("4343")));
    }
}
