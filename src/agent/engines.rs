//! Looks for engines: the config's paths, then `PATH`, then the user's own program folder. Where the config says
//! environment modules, after they were loaded; where it says a container's image, for the runtime that runs it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::files::{read_json, write_json};
use super::layout::expand_home;
use super::tool::{self, is_program};
use crate::base::EngineKind;
use crate::engine::{
    Runtime, image_version, parse_version, program_names, version_arguments, with_modules, worker_names,
};
use crate::inventory::{EngineFound, EngineQuery};

/// How long a program may take to print its version: vLLM imports torch first.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// Versions by path, modification time, size and inode.
type Cache = BTreeMap<String, String>;

/// All engines that the queries find, in the order of the queries.
pub fn find(queries: &[EngineQuery], home: &Path) -> Vec<EngineFound> {
    // Beside the state folders, because it holds for every cluster and because looking makes none.
    let path = home.join(".cache/flock-agent/engine-versions.json");
    let mut cache: Cache = read_json(&path).ok().flatten().unwrap_or_default();
    let before = cache.clone();
    // All at once: each may take seconds to import its libraries.
    let answers: Vec<(EngineFound, Option<String>)> = thread::scope(|scope| {
        let asked: Vec<_> = queries.iter().map(|query| scope.spawn(|| answer(query, home, &before))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).flatten().collect()
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

fn answer(query: &EngineQuery, home: &Path, cache: &Cache) -> Vec<(EngineFound, Option<String>)> {
    if let Some(image) = &query.image {
        let (path, problem) = match runtime(&query.modules) {
            Ok(program) => (program.display().to_string(), None),
            Err(problem) => (image.clone(), Some(problem)),
        };
        return vec![(
            EngineFound {
                kind: query.kind,
                version: image_version(query.kind, image),
                path,
                problem,
                rpc_server: None,
            },
            None,
        )];
    }
    let programs = candidates(query, home);
    thread::scope(|scope| {
        let ask = |program| ask(query.kind, program, &query.modules, cache);
        let asked: Vec<_> = programs.iter().map(|program| scope.spawn(move || ask(program))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
    })
}

/// The container runtime of this node: one that needs no daemon, else one whose daemon answers.
pub fn runtime(modules: &[String]) -> Result<PathBuf, String> {
    let mut problem = "neither apptainer, docker nor podman is there".to_owned();
    for (name, runtime) in Runtime::PROGRAMS {
        let Some(program) = lookup(name, modules) else { continue };
        if !runtime.outlives_client() {
            return Ok(program);
        }
        match tool::run(&mut in_modules(modules, &program, &["version"]), VERSION_DEADLINE) {
            Ok(printed) if printed.code == Some(0) => return Ok(program),
            Ok(printed) => problem = format!("{}: {}", program.display(), printed.last_line()),
            Err(error) => problem = format!("{}: {error}", program.display()),
        }
    }
    Err(problem)
}

/// Where a program of this name is found, once the modules are loaded.
fn lookup(name: &str, modules: &[String]) -> Option<PathBuf> {
    if modules.is_empty() {
        return tool::on_path(name);
    }
    let mut command = in_modules(modules, Path::new("/bin/sh"), &["-c", "command -v \"$1\"", "sh", name]);
    let printed = tool::run(&mut command, VERSION_DEADLINE).ok().filter(|printed| printed.code == Some(0))?;
    Some(PathBuf::from(printed.last_line())).filter(|program| is_program(program))
}

fn in_modules(modules: &[String], program: &Path, arguments: &[&str]) -> Command {
    let argv = std::iter::once(program.display().to_string()).chain(arguments.iter().map(|word| (*word).to_owned()));
    let argv = with_modules(modules, argv.collect());
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]);
    command
}

/// Programs to ask: every path of the config, missing ones too, then the first hit per name on `PATH`.
fn candidates(query: &EngineQuery, home: &Path) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = query.paths.iter().map(|path| expand_home(path, home)).collect();
    for name in program_names(query.kind) {
        let own = || Some(home.join(".local/bin").join(name)).filter(|program| is_program(program));
        list.extend(lookup(name, &query.modules).or_else(own));
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

/// One program, and the key of its version where the cache does not have it yet.
fn ask(kind: EngineKind, program: &Path, modules: &[String], cache: &Cache) -> (EngineFound, Option<String>) {
    let path = program.display().to_string();
    match fs::metadata(program) {
        Err(error) => {
            (EngineFound { kind, version: None, path, problem: Some(error.to_string()), rpc_server: None }, None)
        }
        Ok(_) if !is_program(program) => {
            let problem = Some("is not an executable file".to_owned());
            (EngineFound { kind, version: None, path, problem, rpc_server: None }, None)
        }
        Ok(meta) => {
            let changed = (meta.mtime(), meta.mtime_nsec());
            let mut key = format!("{path}|{}.{}|{}|{}", changed.0, changed.1, meta.size(), meta.ino());
            for module in modules {
                key.push('|');
                key.push_str(module);
            }
            let rpc_server = if modules.is_empty() { worker_beside(kind, program) } else { None };
            if let Some(version) = cache.get(&key) {
                return (EngineFound { kind, version: Some(version.clone()), path, problem: None, rpc_server }, None);
            }
            match version_of(kind, program, modules) {
                Ok(version) => {
                    (EngineFound { kind, version: Some(version), path, problem: None, rpc_server }, Some(key))
                }
                Err(problem) => {
                    (EngineFound { kind, version: None, path, problem: Some(problem), rpc_server: None }, None)
                }
            }
        }
    }
}

/// llama.cpp's worker in the same folder, where a link leads to too: then it is of the same build. It tells no version
/// itself, and two builds need not understand each other.
fn worker_beside(kind: EngineKind, program: &Path) -> Option<String> {
    let real = program.canonicalize().ok()?;
    let beside = |name: &&str| Some(real.parent()?.join(name)).filter(|worker| is_program(worker));
    worker_names(kind).iter().find_map(beside).map(|worker| worker.display().to_string())
}

fn version_of(kind: EngineKind, program: &Path, modules: &[String]) -> Result<String, String> {
    let asked = tool::run(&mut in_modules(modules, program, version_arguments(kind)), VERSION_DEADLINE);
    let printed = asked.map_err(|problem| format!("its version: {problem}"))?;
    parse_version(kind, &printed.text).ok_or_else(|| format!("printed no version but: {}", printed.last_line()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
        let paths = vec![good.clone(), mute, missing];
        let query = EngineQuery { kind: EngineKind::LlamaCpp, paths, modules: Vec::new(), image: None };
        let found = find(std::slice::from_ref(&query), home.path());
        assert_eq!(found[0].rpc_server, None);
        assert!(found[0].version.as_deref().is_some_and(|version| version.contains("4242")), "{found:?}");
        assert!(found[1].version.is_none() && found[1].problem.is_some());
        assert!(found[2].version.is_none() && found[2].problem.is_some());
        // The second time it is not run: the cache knows the file.
        let cache = home.path().join(".cache/flock-agent/engine-versions.json");
        let text = fs::read_to_string(&cache).expect("cached");
        fs::write(&cache, text.replace("4242", "4343")).expect("changed");
        let worker = script(home.path(), "ggml-rpc-server", "exit 0");
        let found = find(&[query], home.path());
        assert!(found[0].version.as_deref().is_some_and(|version| version.contains("4343")));
        // Its worker lies beside it; one that cannot be used itself has none.
        let real = fs::canonicalize(worker).expect("it is there");
        assert_eq!(found[0].rpc_server.as_deref(), real.to_str());
        assert_eq!(found[1].rpc_server, None);
    }
}
