//! The user who runs flock: name and home folder.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::base::expand_home;

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
        // The folder belongs to the user the process runs as.
        let Ok(process) = std::fs::metadata("/proc/self") else { return "unknown".to_owned() };
        let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
        name_of(process.uid(), &String::from_utf8_lossy(&passwd))
    })
}

/// `user@host (pid N)`, for the one who meets the lease.
pub(crate) fn whoami() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".to_owned());
    format!("{}@{} (pid {})", login_name(), host.trim(), std::process::id())
}

/// The name of a user's number in the text of `/etc/passwd`; the number where it has none.
fn name_of(uid: u32, passwd: &str) -> String {
    let number = uid.to_string();
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number && !name.is_empty()).then_some(name)
    });
    named.map_or(number.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_by_its_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\n# a comment\nbroken\n:x:7:7::/:\nada:x:1000:1001:Ada:/home/ada:/bin/sh\n";
        assert_eq!(name_of(0, passwd), "root");
        assert_eq!(name_of(1000, passwd), "ada");
        for without in [7, 100, 1001] {
            assert_eq!(name_of(without, passwd), without.to_string());
        }
        assert_eq!(name_of(3, ""), "3");
        assert!(!login_name().is_empty());
    }

    #[test]
    fn paths_below_the_home_folder_are_found() {
        assert_eq!(expand("/a/b"), PathBuf::from("/a/b"));
        assert!(expand("~/a").ends_with("a") && expand("~/a").is_absolute());
    }
}
