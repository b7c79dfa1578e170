//! The node agent's binaries on this machine: which file is for which node, and what it is called there.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::base::{Digest, Hasher, one_line};
use crate::ports::NodeError;

/// Folder under a node's home that agents lie in.
pub(super) const AGENT_FOLDER: &str = ".local/share/flock/agents";

/// What a binary must be built for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `x86_64`, `aarch64`, …
    pub architecture: String,
    /// `gnu` or `musl`.
    pub libc: String,
}

impl Platform {
    /// This machine's, as flock itself was built.
    pub fn here() -> Self {
        let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        Self { architecture: std::env::consts::ARCH.to_owned(), libc: libc.to_owned() }
    }

    /// From the words of `uname -m` and the C library's own name; other spellings of one architecture are one.
    pub fn of_uname(machine: &str, libc: &str) -> Self {
        let architecture = match machine {
            "amd64" | "x86-64" => "x86_64",
            "arm64" => "aarch64",
            other => other,
        };
        let libc = if libc.to_ascii_lowercase().contains("musl") { "musl" } else { "gnu" };
        Self { architecture: architecture.to_owned(), libc: libc.to_owned() }
    }

    /// `x86_64-gnu`.
    pub(super) fn key(&self) -> String {
        format!("{}-{}", self.architecture, self.libc)
    }

    fn file_name(&self) -> String {
        format!("flock-agent-{}", self.key())
    }
}

/// Where agent binaries lie: `--agent-dir`, and beside the running executable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentBinaries {
    /// `--agent-dir`.
    pub directory: Option<PathBuf>,
}

/// One agent binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentFile {
    pub(super) path: PathBuf,
    pub(super) size_bytes: u64,
    pub(super) sha256: Digest,
}

impl AgentFile {
    /// Its name on a node. The digest in it lets several versions lie side by side, so that a running one is
    /// never written over.
    pub(super) fn remote_name(&self) -> String {
        format!("flock-agent-{}", self.sha256.short(16))
    }
}

impl AgentBinaries {
    fn folders(&self) -> Vec<PathBuf> {
        let beside = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        self.directory.iter().cloned().chain(beside).collect()
    }

    /// Every binary that is there, with the platform it is for. Reads whole files.
    pub(super) fn all(&self) -> Vec<(Platform, AgentFile)> {
        let mut platforms = vec![Platform::here()];
        for entry in self.folders().iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten() {
            let name = entry.file_name();
            let parts = name.to_str().and_then(|name| name.strip_prefix("flock-agent-")?.rsplit_once('-'));
            if let Some((architecture, libc @ ("gnu" | "musl"))) = parts {
                let platform = Platform { architecture: architecture.to_owned(), libc: libc.to_owned() };
                if !platforms.contains(&platform) {
                    platforms.push(platform);
                }
            }
        }
        platforms.into_iter().filter_map(|platform| self.find(&platform).ok().map(|file| (platform, file))).collect()
    }

    /// The binary for a platform: in the agent folder, else beside the running executable, `flock-agent-ARCH-LIBC`, and
    /// where the platform is this machine's a plain `flock-agent` too. Of both in one folder, the one that was written
    /// last: a build leaves the plain one there, and the other may be of an older build. Reads the whole file: call it
    /// from a blocking thread.
    pub(super) fn find(&self, platform: &Platform) -> Result<AgentFile, NodeError> {
        let mut names = vec![platform.file_name()];
        if *platform == Platform::here() {
            names.push("flock-agent".to_owned());
        }
        let written = |path: &PathBuf| std::fs::metadata(path).and_then(|file| file.modified()).ok();
        let mut candidates = Vec::new();
        for folder in self.folders() {
            let mut paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
            paths.sort_by_key(|path| std::cmp::Reverse(written(path)));
            candidates.extend(paths);
        }
        for path in &candidates {
            match read(path) {
                Ok(Some(file)) => return Ok(file),
                Ok(None) => {}
                Err(error) => {
                    let reason = format!("cannot read {}: {error}", path.display());
                    let hint = "make it readable, or name another folder with --agent-dir.".to_owned();
                    return Err(NodeError::Agent { reason, hint: Some(hint) });
                }
            }
        }
        let looked: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        Err(NodeError::Agent {
            reason: format!("there is none for {} here; looked for {}", platform.file_name(), looked.join(", ")),
            hint: Some(format!("put {} into a folder and name it with --agent-dir", platform.file_name())),
        })
    }
}

/// Size and digest of a file; `None` where it is not there or is no regular file.
pub(super) fn read(path: &Path) -> std::io::Result<Option<AgentFile>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut hasher = Hasher::new();
    let mut size_bytes = 0;
    let mut buffer = vec![0_u8; 256 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        size_bytes += read as u64;
    }
    Ok(Some(AgentFile { path: path.to_path_buf(), size_bytes, sha256: hasher.finish() }))
}

/// `flock-agent` answered with an error before its first line: what that means and what to do.
pub(super) fn start_failure(status: Option<u32>, stderr: &str, path: &str) -> NodeError {
    let said = last_words(stderr);
    let hint = if said.contains("GLIBC_") || said.contains("version `GLIBC") {
        Some("the node's C library is older than the agent's: use an agent that was built for it, with --agent-dir")
    } else if said.contains("Exec format error") || said.contains("cannot execute binary file") {
        Some("the agent is for another kind of processor: put the right one into --agent-dir")
    } else if said.contains("ermission denied") || status == Some(126) {
        Some("the home folder's file system may be mounted noexec, or a policy forbids programs there")
    } else if status == Some(127) || said.contains("not found") || said.contains("No such file") {
        Some("the agent needs another C library than the node has: put one built for it into --agent-dir")
    } else {
        None
    };
    let status = status.map_or(String::new(), |status| format!(" with exit status {status}"));
    let said = if said.is_empty() { "it said nothing".to_owned() } else { said };
    NodeError::Agent {
        reason: format!("{path} ended{status} before its first line: {said}"),
        hint: hint.map(str::to_owned),
    }
}

/// The last part of what a program said, on one line and fit for a terminal.
pub(super) fn last_words(text: &str) -> String {
    let clean = one_line(text);
    let skip = clean.chars().count().saturating_sub(400);
    clean.chars().skip(skip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_and_the_plain_binary_are_both_found_and_the_last_written_wins() {
        let folder = tempfile::tempdir().expect("a folder");
        let agents = AgentBinaries { directory: Some(folder.path().to_path_buf()) };
        let write = |name: &str, content: &[u8], seconds: u64| {
            std::fs::write(folder.path().join(name), content).expect("written");
            let file = std::fs::File::options().write(true).open(folder.path().join(name)).expect("there");
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).expect("set");
        };
        let here = Platform::here();
        write("flock-agent", b"plain", 2000);
        let plain = agents.find(&here).expect("the plain one");
        assert_eq!(plain.size_bytes, 5);
        assert_eq!(plain.remote_name(), format!("flock-agent-{}", &Digest::of(b"plain").hex()[..16]));

        // Of an older build, of the same second, of a newer one.
        for (seconds, size_bytes) in [(1000, 5), (2000, 6), (3000, 6)] {
            write(&here.file_name(), b"named!", seconds);
            assert_eq!(agents.find(&here).expect("one of them").size_bytes, size_bytes, "{seconds}");
        }
    }

    #[test]
    fn the_folder_that_was_asked_for_comes_before_what_lies_beside_the_executable() {
        let folder = tempfile::tempdir().expect("a folder");
        let agents = AgentBinaries { directory: Some(folder.path().to_path_buf()) };
        std::fs::write(folder.path().join("flock-agent"), b"plain").expect("written");
        let (asked, beside) = (folder.path().to_path_buf(), std::env::current_exe().expect("this test"));
        assert_eq!(agents.folders(), [asked.clone(), beside.parent().expect("in a folder").to_path_buf()]);
        let error = agents.find(&Platform::of_uname("riscv64", "musl")).expect_err("none").to_string();
        let looked = error.split_once("looked for ").expect("where").1;
        assert!(looked.starts_with(&*asked.to_string_lossy()), "{looked}");
        assert_eq!(agents.find(&Platform::here()).expect("asked for").path, asked.join("flock-agent"));
    }

    #[test]
    fn a_foreign_platform_never_gets_the_plain_binary() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("flock-agent"), b"plain").expect("written");
        let agents = AgentBinaries { directory: Some(folder.path().to_path_buf()) };
        let error = agents.find(&Platform::of_uname("riscv64", "musl libc")).expect_err("none");
        let text = error.to_string();
        assert!(
            text.contains("flock-agent-riscv64-musl") && text.contains(&*folder.path().to_string_lossy()),
            "{text}"
        );
        assert!(error.hint().expect("a hint").contains("--agent-dir"));
    }

    #[test]
    fn names_of_one_architecture_are_one() {
        assert_eq!(Platform::of_uname("amd64", "glibc 2.36"), Platform::of_uname("x86_64", ""));
        assert_eq!(Platform::of_uname("arm64", "musl libc (aarch64)").file_name(), "flock-agent-aarch64-musl");
    }

    #[test]
    fn failures_to_start_name_a_remedy() {
        let noexec = start_failure(Some(126), "sh: 1: exec: /h/agent: Permission denied\n", "/h/agent");
        assert!(noexec.hint().expect("a hint").contains("noexec"));
        let old = start_failure(Some(1), "/h/agent: /lib/libc.so.6: version `GLIBC_2.38' not found", "/h/agent");
        assert!(old.hint().expect("a hint").contains("older"));
        assert!(start_failure(None, "", "/h/agent").to_string().contains("said nothing"));
        assert_eq!(last_words("a\u{1b}[31m\nb"), "a?[31m b");
    }
}
