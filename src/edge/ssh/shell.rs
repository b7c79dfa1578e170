//! Words for the node's login shell. It may be any shell, so every command is one `sh -c` with a fixed script in
//! single quotes (no quote, backslash or `!` in it) and everything else as quoted arguments.

use crate::ports::NodeError;

/// One word in single quotes, for any shell that a login may have. What some shell reads inside single quotes (fish a
/// backslash, csh a `!` and a newline) cannot be said to all of them, and is refused.
fn quote(word: &str) -> Result<String, NodeError> {
    if let Some(bad) = word.chars().find(|c| matches!(c, '\\' | '!') || c.is_control()) {
        return Err(NodeError::Agent {
            reason: format!(
                "`{}` has a `{}`, which not every login shell takes as it is",
                word.escape_debug(),
                bad.escape_debug()
            ),
            hint: Some("rename it: no backslash, `!` or control character in names and home folders".to_owned()),
        });
    }
    let mut quoted = String::with_capacity(word.len() + 2);
    quoted.push('\'');
    for c in word.chars() {
        match c {
            '\'' => quoted.push_str("'\\''"),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    Ok(quoted)
}

/// A fixed script with arguments, as a command line.
pub(super) fn script(script: &str, arguments: &[&str]) -> Result<String, NodeError> {
    debug_assert!(!script.contains(['\'', '\\', '!', '\n']), "the script must survive every shell's single quotes");
    let mut line = format!("sh -c '{script}' sh");
    for argument in arguments {
        line.push(' ');
        line.push_str(&quote(argument)?);
    }
    Ok(line)
}

/// The first line that a script of ours says, on both its outputs: what came before is the start files'.
pub(super) const BEGINS: &str = "flock-begins";

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
    /// The agent that was there and is being started.
    pub(super) agent: Option<String>,
}

/// Lines of a survey.
pub(super) const SURVEY_LINES: usize = 5;

/// Says system, machine, C library and home; then, of the agents in the arguments (platform, file name, size each,
/// after the cluster and the node), starts the one for this machine if it is there. Only POSIX tools.
pub(super) const SURVEY: &str = "echo; echo flock-begins; echo >&2; echo flock-begins >&2; s=$(uname -s); m=$(uname -m); \
    l=$( (getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 || echo unknown) | head -n 1); \
    echo \"$s\"; echo \"$m\"; echo \"$l\"; printf home=%s \"$HOME\"; echo; c=$1; n=$2; shift 2; \
    case $m in amd64|x86-64) m=x86_64;; arm64) m=aarch64;; esac; \
    case $l in *musl*|*Musl*|*MUSL*) l=musl;; *) l=gnu;; esac; d=$HOME/.local/share/flock/agents; \
    while test $# -ge 3; do if test \"$1\" = \"$m-$l\" && test -f \"$d/$2\" && test -x \"$d/$2\" \
    && test \"$(wc -c < \"$d/$2\")\" -eq \"$3\"; then echo \"agent=$2\"; \
    exec \"$d/$2\" serve --cluster \"$c\" --node \"$n\"; fi; shift 3; done; echo agent=; exit 0";

/// Starts the program that its arguments name.
pub(super) const SERVE: &str = "echo; echo flock-begins; echo >&2; echo flock-begins >&2; exec \"$@\"";

/// Takes an agent from its standard input, after saying `flock-ready`: `$1` folder, `$2` where it goes, `$3` the
/// file to write first, `$4` digest, `$5` size. What pushes that died left more than a day ago goes away. A half-done
/// file never stays, and only a whole one is put in place. Where there is no sha256sum, its size must do.
pub(super) const PUSH: &str = "echo; echo flock-begins; echo >&2; echo flock-begins >&2; d=$1; p=$3; mkdir -p \"$d\" || exit 3; \
    find \"$d\" -name \"flock-agent-*.part-*\" -mtime +0 -exec rm -f {} + 2>/dev/null; \
    clean() { rm -f \"$p\"; }; trap clean 0; trap \"exit 1\" 1 2 13 15; echo flock-ready; \
    if (umask 077; cat > \"$p\"); then :; else df -Pk \"$d\"; exit 4; fi; \
    n=$(wc -c < \"$p\"); if test \"$n\" -eq \"$5\"; then :; else echo \"size=$n\"; df -Pk \"$d\"; exit 5; fi; \
    h=$(sha256sum < \"$p\" 2>/dev/null); h=${h%% *}; \
    if test -z \"$h\" || test \"$h\" = \"$4\"; then :; else echo \"digest=$h\"; exit 6; fi; \
    chmod 700 \"$p\" && mv -f \"$p\" \"$2\"";

/// Reads the survey's lines; the error says what is odd about it.
pub(super) fn read_survey(lines: &[String]) -> Result<Survey, String> {
    let mut lines = lines.iter();
    let mut next =
        |what: &str| lines.next().map(|line| line.trim()).ok_or_else(|| format!("the node did not say its {what}"));
    let system = next("system")?.to_owned();
    let machine = next("machine")?.to_owned();
    let libc = next("C library")?.to_owned();
    let home = next("home folder")?.strip_prefix("home=").unwrap_or_default();
    let home = if home == "/" { "/" } else { home.trim_end_matches('/') }.to_owned();
    let agent = next("agent")?.strip_prefix("agent=").unwrap_or_default();
    if !machine.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') || machine.is_empty() {
        return Err(format!("odd machine name {machine:?}"));
    }
    if !home.starts_with('/') || home.chars().any(char::is_control) {
        return Err(format!("the login has no usable home folder: {home:?}"));
    }
    let agent = Some(agent.to_owned()).filter(|agent| !agent.is_empty());
    Ok(Survey { system, machine, libc, home, agent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(script: &str, arguments: &[&str]) -> String {
        super::script(script, arguments).expect("words for every shell")
    }

    /// What `sh` makes of a command line.
    fn run(line: &str, home: &str) -> String {
        let output =
            std::process::Command::new("sh").args(["-c", line]).env("HOME", home).output().expect("sh is there");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    #[test]
    fn quoted_words_arrive_whole_in_every_login_shell() {
        // sh and bash are everywhere; of the others those that are installed.
        for shell in ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"] {
            let run = |line: &str| {
                let output = std::process::Command::new(shell).args(["-c", line]).env("HOME", "/").output().ok()?;
                String::from_utf8(output.stdout).ok()
            };
            let Some(answer) = run(&script("printf %s \"$1\"", &["here"])) else { continue };
            assert_eq!(answer, "here", "{shell}");
            for word in
                ["plain", "", "it's", "a b", "$(touch x)", "`id`", "\"q\"", "'", "''", "*", "~", "-n", "a;b", "#c"]
            {
                let answer = run(&script("printf %s \"$1\"", &[word])).unwrap_or_default();
                assert_eq!(answer, word, "{shell}: {word:?}");
            }
            let survey = run(&script(SURVEY, &["it's", "ada 1"])).unwrap_or_default();
            assert!(read_survey(&lines(&survey)).is_ok(), "{shell}: {survey}");
        }
    }

    #[test]
    fn words_that_break_out_of_a_login_shell_s_quotes_are_refused() {
        let hostile = [
            "x\\'; echo INJECTED; #",
            "x\\",
            "x\n echo INJECTED",
            "x'\necho INJECTED\n'",
            "!!",
            "x\r",
            "\u{1b}]0;x\u{7}",
            "\u{85}",
        ];
        for word in hostile {
            let refused = super::script("printf %s \"$1\"", &["fine", word]).expect_err("refused").to_string();
            assert!(!refused.chars().any(char::is_control), "{refused}");
        }
        // Why: what is in single quotes to sh is not in them to every shell.
        for shell in ["fish", "csh", "tcsh"] {
            let naive = format!("sh -c 'printf %s \"$1\"' sh '{}'", hostile[0].replace('\'', "'\\''"));
            let Ok(output) = std::process::Command::new(shell).args(["-c", &naive]).output() else { continue };
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(said.lines().any(|line| line.ends_with("INJECTED") && !line.contains("echo")), shell == "fish");
        }
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().skip_while(|line| *line != BEGINS).skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn a_real_shell_answers_the_survey_and_starts_what_is_there() {
        let home = tempfile::tempdir().expect("a folder");
        let odd = home.path().join("it's a \"home\" $(x)");
        let agents = odd.join(".local/share/flock/agents");
        std::fs::create_dir_all(&agents).expect("made");
        let program = "#!/bin/sh\necho started \"$@\"\n";
        let file = agents.join("flock-agent-0123456789abcdef");
        std::fs::write(&file, program).expect("written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
        let odd = odd.to_str().expect("UTF-8");
        let platform = crate::edge::agents::Platform::here().key();
        let size = program.len().to_string();
        let ask = |size: &str, platform: &str| {
            let words = ["it's", "ada 1", "other-gnu", "x", "1", platform, "flock-agent-0123456789abcdef", size];
            run(&script(SURVEY, &words), odd)
        };

        let output = format!("Welcome\nto the lab\n{}", ask(&size, &platform));
        let survey = read_survey(&lines(&output)).expect("a survey");
        assert_eq!((survey.system.as_str(), survey.home.as_str()), ("Linux", odd));
        assert_eq!(survey.machine, std::env::consts::ARCH);
        assert!(survey.libc.contains("libc") || survey.libc.contains("musl"), "{}", survey.libc);
        assert_eq!(survey.agent.as_deref(), Some("flock-agent-0123456789abcdef"));
        assert!(output.ends_with("started serve --cluster it's --node ada 1\n"), "{output}");

        for output in [ask("9", &platform), ask(&size, "riscv64-gnu")] {
            assert_eq!(read_survey(&lines(&output)).expect("a survey").agent, None, "{output}");
        }
        let none = read_survey(&lines(&run(&script(SURVEY, &["c", "n"]), "/nonexistent"))).expect("a survey");
        assert_eq!((none.home.as_str(), none.agent), ("/nonexistent", None));
    }

    #[test]
    fn an_odd_survey_is_refused() {
        let read = |text: &str| read_survey(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        assert!(read("").is_err());
        assert!(read("Linux\nx86_64\nglibc\nhome=\nagent=").is_err());
        assert!(read("Linux\n$(x)\nglibc\nhome=/root/\nagent=").is_err());
        assert_eq!(read("Linux\nx86_64\nglibc\nhome=/\nagent=").expect("fine").home, "/");
    }

    #[test]
    fn a_push_puts_only_a_whole_file_in_place() {
        use std::io::Write as _;
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().join("a b/agents");
        let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        let digest = crate::base::Digest::of(b"agent");
        let digest = digest.hex();
        let push = |bytes: &[u8], digest: &str| {
            let (folder, file, part) = (at(""), at("flock-agent-1"), at("flock-agent-1.part-2"));
            let line = script(PUSH, &[folder.trim_end_matches('/'), &file, &part, digest, "5"]);
            let mut child = std::process::Command::new("sh")
                .args(["-c", &line])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("sh is there");
            child.stdin.take().expect("piped").write_all(bytes).expect("written");
            child.wait().expect("it ends").code()
        };
        let names = || {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let mut names: Vec<String> = entries.map(|e| e.file_name().into_string().expect("UTF-8")).collect();
            names.sort();
            names
        };
        assert_eq!(push(b"age", digest), Some(5), "half of it");
        assert_eq!(push(b"agenT", digest), Some(6), "another");
        assert_eq!(names(), Vec::<String>::new());

        let (old, young) = (at("flock-agent-0.part-old"), at("flock-agent-0.part-young"));
        std::fs::write(&old, b"x").expect("written");
        std::fs::write(&young, b"x").expect("written");
        std::fs::write(at("flock-agent-0"), b"x").expect("written");
        let before = std::time::SystemTime::now() - std::time::Duration::from_secs(49 * 3600);
        for name in [&old, &at("flock-agent-0")] {
            let file = std::fs::File::options().write(true).open(name).expect("there");
            file.set_modified(before).expect("set");
        }
        assert_eq!(push(b"agent", digest), Some(0));
        assert_eq!(names(), ["flock-agent-0", "flock-agent-0.part-young", "flock-agent-1"]);
    }
}
