//! What the login may use of the node's memory, where a control group limits it.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The most that may be used.
    pub max_bytes: u64,
    /// What may still be used, file pages that can be dropped included.
    pub available_bytes: u64,
}

/// The tightest limit on this process's group and those above it; `None` where there is none.
pub fn memory() -> Option<Limit> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let v2 = group(&groups, "").and_then(|path| tightest(Path::new("/sys/fs/cgroup"), &path, V2));
    let v1 = || tightest(Path::new("/sys/fs/cgroup/memory"), &group(&groups, "memory")?, V1);
    v2.or_else(v1)
}

/// Names of limit, use and a line of statistics.
type Names = (&'static str, &'static str, &'static str);
const V2: Names = ("memory.max", "memory.current", "inactive_file ");
const V1: Names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ");
/// Version 1 writes "no limit" as a number near the top.
const NO_LIMIT: u64 = 1 << 60;

/// The group in `/proc/self/cgroup` of a controller; of version 2 for the empty one.
fn group(text: &str, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then(|| path.to_owned())
    })
}

fn tightest(root: &Path, group: &str, names: Names) -> Option<Limit> {
    let folder: PathBuf = root.join(group.trim_start_matches('/'));
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|folder| limit(folder, names)).min_by_key(|limit| limit.available_bytes)
}

fn limit(folder: &Path, (max, current, inactive): Names) -> Option<Limit> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let max_bytes = number(max).filter(|max| *max < NO_LIMIT)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok()).unwrap_or(0);
    let used = number(current)?.saturating_sub(cached);
    Some(Limit { max_bytes, available_bytes: max_bytes.saturating_sub(used) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_above_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let slice = root.path().join("user.slice");
        let leaf = slice.join("session.scope");
        fs::create_dir_all(&leaf).expect("made");
        let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
        write(&leaf, "memory.max", "max\n");
        write(&leaf, "memory.current", "10\n");
        write(&slice, "memory.max", "1000\n");
        write(&slice, "memory.current", "600\n");
        write(&slice, "memory.stat", "anon 1\ninactive_file 100\n");
        let found = tightest(root.path(), "/user.slice/session.scope", V2);
        assert_eq!(found, Some(Limit { max_bytes: 1000, available_bytes: 500 }));
        assert_eq!(tightest(root.path(), "/other", V2), None);
        let text = "4:memory:/m\n2:cpu,cpuacct:/c\n0::/user.slice\n";
        assert_eq!(group(text, "").as_deref(), Some("/user.slice"));
        assert_eq!(group(text, "memory").as_deref(), Some("/m"));
    }
}
