//! Programs of the node that are asked something, each with a deadline.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::base::one_line;

/// Most bytes of a program's output that are read.
const OUTPUT_BYTES: u64 = 64 << 10;

/// How a program ended and what it printed, both streams together, in the order it came.
#[derive(Debug)]
pub struct Printed {
    /// Its status; `None` after a signal.
    pub code: Option<i32>,
    /// What it printed.
    pub text: String,
}

impl Printed {
    /// The last line that is not empty, fit for a terminal.
    pub fn last_line(&self) -> String {
        let last = self.text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        one_line(last).chars().take(200).collect()
    }
}

/// Runs a program to its end, or ends it and everything in its process group at the deadline.
pub fn run(command: &mut Command, deadline: Duration) -> Result<Printed, String> {
    // A file, not a pipe: a grandchild that keeps a pipe open would outlast the deadline.
    let mut output = scratch_file().map_err(|error| format!("no scratch file for its output: {error}"))?;
    let copy = |file: &File| file.try_clone().map_err(|error| error.to_string());
    command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&output)?).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if started.elapsed() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) | Err(_) => break None,
        }
    };
    let Some(status) = status else {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
        return Err(format!("did not end within {} s", deadline.as_secs()));
    };
    let mut text = Vec::new();
    output.rewind().map_err(|error| error.to_string())?;
    output.take(OUTPUT_BYTES).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(Printed { code: status.code(), text: String::from_utf8_lossy(&text).into_owned() })
}

/// The first program of this name on `PATH`, or where systems keep theirs.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&search).chain(usual).map(|folder| folder.join(name)).find(|program| is_program(program))
}

/// Whether there is an executable file.
pub fn is_program(path: &Path) -> bool {
    path.is_absolute() && fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
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
