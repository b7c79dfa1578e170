//! The kernel's files as a tree under a root, so that a copy of one can be read like the real one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::base::one_line;

/// Where `/sys`, `/proc` and `/usr/share` are.
#[derive(Debug, Clone)]
pub struct Tree {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/usr/share`.
    pub share: PathBuf,
}

impl Tree {
    /// This machine's.
    pub fn real() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), share: "/usr/share".into() }
    }
}

/// Why a file of the kernel's gave no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silent {
    /// The driver has no such file, or no answer for this device.
    Absent,
    /// The file is there and says something that makes no sense, or this user may not read it.
    Unreadable(String),
    /// The device does not answer.
    Fault(String),
}

impl Silent {
    fn of(path: &Path, error: &io::Error) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Self::Absent,
            Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL | rustix::io::Errno::NODATA) => Self::Absent,
            // amdgpu answers EPERM to every question while it resets the device.
            Some(rustix::io::Errno::NODEV | rustix::io::Errno::IO | rustix::io::Errno::PERM) => {
                Self::Fault(format!("{name}: {error}"))
            }
            _ => Self::Unreadable(format!("{name}: {error}")),
        }
    }

    /// In words.
    pub fn reason(&self) -> String {
        match self {
            Self::Absent => "the driver does not tell".to_owned(),
            Self::Unreadable(text) | Self::Fault(text) => text.clone(),
        }
    }
}

/// A file's text without the blanks around it.
pub fn text(path: &Path) -> Result<String, Silent> {
    let bytes = fs::read(path).map_err(|error| Silent::of(path, &error))?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    if text.is_empty() { Err(Silent::Absent) } else { Ok(text.to_owned()) }
}

/// A file's number, decimal or with `0x`.
pub fn number(path: &Path) -> Result<u64, Silent> {
    let text = text(path)?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let shown: String = one_line(&text).chars().take(40).collect();
        Silent::Unreadable(format!("{name} is not a number: {shown:?}"))
    })
}

/// The value of `NAME VALUE` in the text of a KFD properties file.
pub fn property(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Names in a folder; none where it cannot be listed.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Names in a folder that are numbers, in their order.
pub fn numbers(folder: &Path) -> Vec<u32> {
    let mut numbers: Vec<u32> = names(folder).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
