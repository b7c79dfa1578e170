//! Words for the node's login shell. It may be any shell, so every command is one `sh -c` with a fixed script in
//! single quotes (no quote, backslash or `!` in it) and everything else as quoted arguments.

/// One word in single quotes, for any shell that a login may have.
pub(super) fn quote(word: &str) -> String {
    let mut quoted = String::with_capacity(word.len() + 2);
    quoted.push('\'');
    for c in word.chars() {
        match c {
            '\'' => quoted.push_str("'\\''"),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// A fixed script with arguments, as a command line.
pub(super) fn script(script: &str, arguments: &[&str]) -> String {
    debug_assert!(!script.contains(['\'', '\\', '!', '\n']), "the script must survive every shell's single quotes");
    let mut line = format!("exec sh -c '{script}' sh");
    for argument in arguments {
        line.push(' ');
        line.push_str(&quote(argument));
    }
    line
}

/// What one look at a node tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Survey {
    /// `uname -s`.
    pub(super) system: String,
    /// `uname -m`.
    pub(super) machine: String,
    /// What the C library calls itself.
    pub(super) libc: String,
    /// The home folder.
    pub(super) home: String,
    /// Agent files that are there: name and size.
    pub(super) agents: Vec<(String, u64)>,
}

/// Prints, after a line that no start file prints: system, machine, C library, home, then size and name of every
/// agent. Only POSIX tools.
pub(super) const SURVEY: &str = "echo flock-survey-begins; uname -s; uname -m; \
    (getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 || echo unknown) | head -n 1; \
    printf home=%s \"$HOME\"; echo; \
    cd \"$HOME\"/.local/share/flock/agents 2>/dev/null || exit 0; \
    for f in flock-agent-*; do if test -f \"$f\" && test -x \"$f\"; then echo \"$(wc -c < \"$f\")\" \"$f\"; fi; done; exit 0";

/// Reads the survey; the error says what is odd about it.
pub(super) fn read_survey(output: &str) -> Result<Survey, String> {
    let mut lines = output.lines().skip_while(|line| line.trim_end() != "flock-survey-begins").skip(1);
    let mut next = |what: &str| lines.next().map(str::trim).ok_or_else(|| format!("the node did not say its {what}"));
    let system = next("system")?.to_owned();
    let machine = next("machine")?.to_owned();
    let libc = next("C library")?.to_owned();
    let home = next("home folder")?.strip_prefix("home=").unwrap_or_default();
    let home = if home == "/" { "/" } else { home.trim_end_matches('/') }.to_owned();
    if !machine.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') || machine.is_empty() {
        return Err(format!("odd machine name {machine:?}"));
    }
    if !home.starts_with('/') || home.chars().any(char::is_control) {
        return Err(format!("the login has no usable home folder: {home:?}"));
    }
    let agents = lines
        .filter_map(|line| {
            let (size, name) = line.trim().split_once(' ')?;
            Some((name.trim().to_owned(), size.parse().ok()?))
        })
        .collect();
    Ok(Survey { system, machine, libc, home, agents })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `sh` makes of a command line.
    fn run(line: &str, home: &str) -> String {
        let output =
            std::process::Command::new("sh").args(["-c", line]).env("HOME", home).output().expect("sh is there");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    #[test]
    fn quoted_words_arrive_whole() {
        for word in
            ["plain", "", "it's", "a b", "$(touch x)", "`id`", "\"q\"", "a\nb", "\\", "'", "''", "*", "!x", "~", "-n"]
        {
            assert_eq!(run(&format!("printf %s {}", quote(word)), "/"), word, "{word:?}");
            assert_eq!(run(&script("printf %s \"$1\"", &[word]), "/"), word, "{word:?}");
        }
    }

    #[test]
    fn a_real_shell_answers_the_survey() {
        let home = tempfile::tempdir().expect("a folder");
        let odd = home.path().join("it's a \"home\" $(x)");
        let agents = odd.join(".local/share/flock/agents");
        std::fs::create_dir_all(&agents).expect("made");
        let file = agents.join("flock-agent-0123456789abcdef");
        std::fs::write(&file, b"12345").expect("written");
        std::fs::write(agents.join("flock-agent-notrunnable"), b"1").expect("written");
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&file, permissions).expect("set");
        let odd = odd.to_str().expect("UTF-8");

        let output = format!("Welcome\nto the lab\n{}", run(&script(SURVEY, &[]), odd));
        let survey = read_survey(&output).expect("a survey");
        assert_eq!((survey.system.as_str(), survey.home.as_str()), ("Linux", odd));
        assert_eq!(survey.machine, std::env::consts::ARCH);
        assert!(survey.libc.contains("libc") || survey.libc.contains("musl"), "{}", survey.libc);
        assert_eq!(survey.agents, [("flock-agent-0123456789abcdef".to_owned(), 5)]);

        let none = read_survey(&run(&script(SURVEY, &[]), "/nonexistent")).expect("a survey");
        assert_eq!((none.home.as_str(), none.agents.len()), ("/nonexistent", 0));
    }

    #[test]
    fn an_odd_survey_is_refused() {
        assert!(read_survey("").is_err());
        assert!(read_survey("flock-survey-begins\nLinux\nx86_64\nglibc\nhome=\n").is_err());
        assert!(read_survey("flock-survey-begins\nLinux\n$(x)\nglibc\nhome=/root/\n").is_err());
        let root = read_survey("flock-survey-begins\nLinux\nx86_64\nglibc\nhome=/\n").expect("fine");
        assert_eq!(root.home, "/");
    }
}
