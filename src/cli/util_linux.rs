//! `flock` is also util-linux's file-lock tool: a command line meant for that one gets a hint.

/// Subcommand words of ours never look like these.
pub fn looks_like_file_lock(arguments: &[String]) -> bool {
    let Some(first) = arguments.first() else { return false };
    let descriptor = !first.is_empty() && first.bytes().all(|b| b.is_ascii_digit());
    let path = first.starts_with('/') || first.starts_with("./") || first.starts_with("../") || first.starts_with("~/");
    let its_flag = matches!(
        first.as_str(),
        "-n" | "--nb"
            | "--nonblock"
            | "-x"
            | "-e"
            | "--exclusive"
            | "-s"
            | "--shared"
            | "-u"
            | "--unlock"
            | "-w"
            | "--wait"
            | "--timeout"
            | "-o"
            | "--close"
            | "-c"
            | "--command"
            | "-E"
            | "-F"
            | "--no-fork"
    );
    descriptor || path || its_flag
}

/// What such a command line is told.
pub const HINT: &str = "this is flock, the model reconciler; the file-lock tool of the same name is /usr/bin/flock";

#[cfg(test)]
mod tests {
    use super::looks_like_file_lock;

    fn check(line: &str) -> bool {
        looks_like_file_lock(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn file_lock_command_lines_are_recognised() {
        for line in ["/var/lock/x echo hi", "9", "-n /tmp/l -c true", "-x 200", "./l true", "-w 5 /l true"] {
            assert!(check(line), "{line}");
        }
        for line in ["plan", "-C /tmp plan", "--help", "", "apply plan.json", "-v plan", "-q"] {
            assert!(!check(line), "{line}");
        }
    }
}
