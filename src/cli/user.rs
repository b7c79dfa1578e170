//! The user who runs flock: name and home folder.

use std::path::PathBuf;

use crate::base::{expand_home, passwd_name};
use crate::edge::own_uid;

/// The user's home folder; `/` where none is known.
pub(crate) fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"))
}

/// A path with a leading `~` replaced by the user's home folder.
pub(crate) fn expand(path: &str) -> PathBuf {
    PathBuf::from(expand_home(path, home().to_str()))
}

/// The user's login name, as SSH's own default is: from the environment, else from `/etc/passwd`, else the
/// user's number.
pub(crate) fn login_name() -> String {
    let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    set("USER").or_else(|| set("LOGNAME")).unwrap_or_else(|| {
        let Some(uid) = own_uid() else { return "unknown".to_owned() };
        let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
        passwd_name(&String::from_utf8_lossy(&passwd), uid).map_or_else(|| uid.to_string(), str::to_owned)
    })
}

/// `user@host (pid N)`, for the one who meets the lease.
pub(crate) fn whoami() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".to_owned());
    format!("{}@{} (pid {})", login_name(), host.trim(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_runs_this() {
        assert!(!login_name().is_empty() && whoami().contains(&login_name()));
    }

    #[test]
    fn paths_below_the_home_folder_are_found() {
        assert_eq!(expand("/a/b"), PathBuf::from("/a/b"));
        assert!(expand("~/a").ends_with("a") && expand("~/a").is_absolute());
    }
}
