//! `~/.ssh/config` and `/etc/ssh/ssh_config`, read the way ssh reads them: what they say about one host.
//!
//! The first value wins, identity files add up, an `Include` counts only where it stands in a block that applies.
//! What decides where to connect to and whom to trust is read; all else (forwarding, ciphers, terminals) is passed
//! over. `ProxyCommand`, and `Match` blocks that would set something that is read, are refused: passing over them
//! would go elsewhere than ssh does. Files were read before ([`super::config_files`]); everything here is pure.

use std::time::Duration;

use super::config_lines::{ConfigFile, Item};
use super::glob::fits_list;
use crate::base::Hop;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigError {
    /// `file:line`.
    pub(super) place: String,
    pub(super) reason: String,
    pub(super) hint: String,
}

/// How the files say to get to a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// Nothing is said.
    #[default]
    Unsaid,
    /// Through these, none for "straight there".
    Jump(Vec<Hop>),
    /// By a command, which flock does not run.
    Command { place: String },
}

/// What the files say about a host, unexpanded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) host_name: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) identity_files: Vec<String>,
    pub(super) identities_only: Option<bool>,
    pub(super) identity_agent: Option<String>,
    pub(super) user_known_hosts: Option<Vec<String>>,
    pub(super) global_known_hosts: Option<Vec<String>>,
    pub(super) host_key_alias: Option<String>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) way: Way,
    /// What is not obeyed, each with its place.
    pub(super) notes: Vec<String>,
}

/// Keywords that are read. A `Match` that sets one of them is refused.
const READ: &[&str] = &[
    "hostname",
    "port",
    "user",
    "identityfile",
    "identitiesonly",
    "identityagent",
    "userknownhostsfile",
    "globalknownhostsfile",
    "hostkeyalias",
    "connecttimeout",
    "proxyjump",
    "proxycommand",
    "revokedhostkeys",
];
/// Keywords that change whom ssh trusts or what it reaches, and which flock does not obey: said with `-v`.
const NOT_OBEYED: &[&str] = &[
    "stricthostkeychecking",
    "updatehostkeys",
    "nohostauthenticationforlocalhost",
    "verifyhostkeydns",
    "knownhostscommand",
    "checkhostip",
    "canonicalizehostname",
    "hostkeyalgorithms",
    "kexalgorithms",
    "ciphers",
    "macs",
    "casignaturealgorithms",
    "pubkeyacceptedalgorithms",
    "pubkeyacceptedkeytypes",
    "certificatefile",
    "pkcs11provider",
    "bindaddress",
    "bindinterface",
    "addressfamily",
];

/// Whether a block applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applies {
    Yes,
    No,
    /// A `Match` at this line that may.
    Perhaps(usize),
}

/// The host that is asked about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The name as it was written.
    pub(super) host: &'a str,
    /// The login name, where it is decided already.
    pub(super) user: Option<&'a str>,
    /// Who runs flock.
    pub(super) local_user: &'a str,
}

/// What the files say, in order.
pub(super) fn look_up(files: &[ConfigFile], asked: Asked<'_>) -> Result<Said, ConfigError> {
    let mut said = Said::default();
    for file in files {
        read(file, Applies::Yes, asked, &mut said)?;
    }
    Ok(said)
}

fn read(file: &ConfigFile, base: Applies, asked: Asked<'_>, said: &mut Said) -> Result<(), ConfigError> {
    let mut applies = base;
    for line in &file.lines {
        let place = || format!("{}:{}", file.name, line.number);
        let broken = |reason: String, hint: &str| ConfigError { place: place(), reason, hint: hint.to_owned() };
        match &line.item {
            Item::Host(patterns) => {
                let fits = fits_list(patterns.iter().map(String::as_str), asked.host);
                applies = if fits { base } else { Applies::No };
            }
            Item::Match(criteria) => {
                applies = match (base, criterion(criteria, asked, said)) {
                    (Applies::No, _) | (_, Some(false)) => Applies::No,
                    (base, Some(true)) => base,
                    (_, None) => Applies::Perhaps(line.number),
                };
            }
            _ if applies == Applies::No => {}
            Item::Include(files) => {
                for file in files {
                    read(file, applies, asked, said)?;
                }
            }
            Item::Broken(problem) => {
                return Err(broken(problem.clone(), "ssh -G shows how ssh reads the file: repair the line."));
            }
            Item::Setting(keyword, words) => {
                let keyword = keyword.as_str();
                if let Applies::Perhaps(at) = applies {
                    if READ.contains(&keyword) && !is_said(said, keyword) {
                        let reason = format!("a `Match` block that may apply to `{}` sets `{keyword}`", asked.host);
                        return Err(ConfigError {
                            place: format!("{}:{at}", file.name),
                            reason,
                            hint: "flock does not follow `Match`: move the line into a `Host` block above it, or set it with `ssh` in cluster.kdl.".to_owned(),
                        });
                    }
                    continue;
                }
                if NOT_OBEYED.contains(&keyword) {
                    said.notes.push(format!("{}: `{keyword}` is not obeyed", place()));
                } else if READ.contains(&keyword) {
                    set(said, keyword, words, &place())
                        .map_err(|problem| broken(problem, "ssh_config(5) says what may stand there."))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether a later line of this keyword would change nothing.
fn is_said(said: &Said, keyword: &str) -> bool {
    match keyword {
        "hostname" => said.host_name.is_some(),
        "port" => said.port.is_some(),
        "user" => said.user.is_some(),
        "identitiesonly" => said.identities_only.is_some(),
        "identityagent" => said.identity_agent.is_some(),
        "userknownhostsfile" => said.user_known_hosts.is_some(),
        "globalknownhostsfile" => said.global_known_hosts.is_some(),
        "hostkeyalias" => said.host_key_alias.is_some(),
        "connecttimeout" => said.connect_timeout.is_some(),
        "proxyjump" | "proxycommand" => said.way != Way::Unsaid,
        _ => false,
    }
}

/// Whether a `Match` line applies: certainly, certainly not, or nobody here can say.
fn criterion(words: &[String], asked: Asked<'_>, said: &Said) -> Option<bool> {
    if words.len() == 1 && words[0].eq_ignore_ascii_case("all") {
        return Some(true);
    }
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (negated, word) = word.strip_prefix('!').map_or((false, word), |rest| (true, rest));
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let name = name.to_ascii_lowercase();
        let subject = match name.as_str() {
            "host" => {
                said.host_name.as_deref().map_or_else(|| asked.host.to_owned(), |name| name.replace("%h", asked.host))
            }
            "originalhost" => asked.host.to_owned(),
            "user" => asked.user.or(said.user.as_deref()).unwrap_or(asked.local_user).to_owned(),
            "localuser" => asked.local_user.to_owned(),
            "exec" | "localnetwork" | "tagged" => {
                if value.is_none() {
                    words.next();
                }
                continue;
            }
            "canonical" | "final" | "all" => continue,
            _ => return None,
        };
        let patterns = value.or_else(|| words.next())?;
        if fits_list(patterns.split(','), &subject) == negated {
            return Some(false);
        }
    }
    // All that can be known fits: flock follows none of them.
    None
}

fn set(said: &mut Said, keyword: &str, words: &[String], place: &str) -> Result<(), String> {
    let Some(first) = words.first().filter(|first| !first.is_empty()) else {
        return Err(format!("`{keyword}` without a value"));
    };
    if is_said(said, keyword) {
        return Ok(());
    }
    match keyword {
        "hostname" => said.host_name = Some(first.clone()),
        "port" => {
            let port = first.parse().ok().filter(|port| *port > 0);
            said.port = Some(port.ok_or_else(|| format!("`{}` is no port", first.escape_debug()))?);
        }
        "user" => said.user = Some(first.clone()),
        "identityfile" => {
            if !said.identity_files.contains(first) {
                said.identity_files.push(first.clone());
            }
        }
        "identitiesonly" => said.identities_only = Some(flag(first)?),
        "identityagent" => said.identity_agent = Some(first.clone()),
        "userknownhostsfile" => said.user_known_hosts = Some(files(words)),
        "globalknownhostsfile" => said.global_known_hosts = Some(files(words)),
        "hostkeyalias" => said.host_key_alias = Some(first.clone()),
        "connecttimeout" => said.connect_timeout = Some(time(first)?),
        "proxyjump" => said.way = Way::Jump(Hop::parse_row(first)?),
        "proxycommand" if first.eq_ignore_ascii_case("none") => said.way = Way::Jump(Vec::new()),
        "proxycommand" => said.way = Way::Command { place: place.to_owned() },
        "revokedhostkeys" if first.eq_ignore_ascii_case("none") => {}
        "revokedhostkeys" => {
            return Err("`RevokedHostKeys` is not read; put `@revoked` lines into a known_hosts file".to_owned());
        }
        other => return Err(format!("`{other}` is not read")),
    }
    Ok(())
}

fn files(words: &[String]) -> Vec<String> {
    words.iter().filter(|word| !word.eq_ignore_ascii_case("none")).cloned().collect()
}

fn flag(word: &str) -> Result<bool, String> {
    match word.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err(format!("`{}` is neither `yes` nor `no`", word.escape_debug())),
    }
}

/// `30`, `1m30s`: seconds, or numbers with `s`, `m`, `h`, `d`, `w`.
fn time(word: &str) -> Result<Duration, String> {
    let wrong = || format!("`{}` is no time", word.escape_debug());
    let (mut total, mut number) = (0_u64, None::<u64>);
    for c in word.chars() {
        if let Some(digit) = c.to_digit(10) {
            number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(u64::from(digit)));
            continue;
        }
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return Err(wrong()),
        };
        total = total.saturating_add(number.take().ok_or_else(wrong)?.saturating_mul(unit));
    }
    total = total.saturating_add(number.unwrap_or(0));
    if total == 0 { Err(wrong()) } else { Ok(Duration::from_secs(total)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::ssh::config_lines::parse;

    fn file(text: &str) -> ConfigFile {
        parse("/h/.ssh/config", text, &mut |pattern| Err(format!("no include of {pattern} here")))
    }

    fn asked(host: &str) -> Asked<'_> {
        Asked { host, user: None, local_user: "root" }
    }

    fn said(text: &str, host: &str) -> Result<Said, ConfigError> {
        look_up(&[file(text)], asked(host))
    }

    /// What OpenSSH itself makes of a text; `None` where it is not installed.
    fn openssh(text: &str, host: &str) -> Option<Vec<(String, String)>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        std::fs::write(&path, text).expect("written");
        let output = std::process::Command::new("ssh").arg("-G").arg("-F").arg(&path).arg(host).output().ok()?;
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Some(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn it_says_what_openssh_says() {
        let texts = [
            "Host a b\n  HostName 10.0.0.1\n  Port 2222\nHost *\n  HostName other\n  User flock\n  Port 22\n",
            "Port=2200\nHost !bad.lab *.lab\n  User = \"lab\"\n  HostName %h.example.org\n  ProxyJump me@gate:2222,inner\n",
            "HOST *.lab !x.lab\n\tidentityfile ~/.ssh/one\n\tIdentityFile=~/.ssh/two # which\nHost *\n IdentityFile ~/.ssh/three\n IdentityFile ~/.ssh/one\n",
            "# c\n\nHost \"a\" 'b'\n  User \"o'x\"\n  HostKeyAlias lab-%h\n  IdentitiesOnly yes\n  ConnectTimeout 1m30\n",
            "Host ?.lab\n  UserKnownHostsFile ~/.ssh/k1 /k2\n  GlobalKnownHostsFile /g\nHost *\n  UserKnownHostsFile /other\n",
            "Host *.lab\n  ProxyJump none\nHost *\n  ProxyJump gate\n",
            "Match all\n  User everybody\nHost a\n  User late\n",
            "Match originalhost zzz\n  User nobody\n  ProxyJump nowhere\nMatch host *.lab,zzz user nobody\n  Port 9\nHost *\n Port 7\n",
            "Host a.lab\n  ProxyCommand none\nHost *\n  ProxyJump gate\n",
            "Host a\n  ForwardAgent yes\n  Ciphers aes256-ctr\n  SendEnv LANG LC_*\n  LocalForward 8000 localhost:80\n  User x\n",
        ];
        let mut compared = 0;
        for text in texts {
            for host in ["a", "b", "a.lab", "x.lab", "bad.lab", "elsewhere.example"] {
                let Some(theirs) = openssh(text, host) else { return };
                let ours = said(text, host).unwrap_or_else(|error| panic!("{text} {host}: {error:?}"));
                let all = |key: &str| -> Vec<&str> {
                    theirs.iter().filter(|(name, _)| name == key).map(|(_, value)| value.as_str()).collect()
                };
                let one = |key: &str| all(key).first().copied().unwrap_or_default();
                let name = ours.host_name.clone().unwrap_or_else(|| "%h".to_owned()).replace("%h", host);
                assert_eq!(name, one("hostname"), "{text} {host}");
                assert_eq!(ours.port.unwrap_or(22).to_string(), one("port"), "{text} {host}");
                if let Some(user) = &ours.user {
                    assert_eq!(user, one("user"), "{text} {host}");
                }
                if ours.identity_files.is_empty() {
                    assert!(all("identityfile").contains(&"~/.ssh/id_ed25519"), "{text} {host}: the defaults");
                } else {
                    assert_eq!(ours.identity_files, all("identityfile"), "{text} {host}");
                }
                let jump = match &ours.way {
                    Way::Jump(hops) => Hop::join(hops),
                    _ => String::new(),
                };
                assert_eq!(jump, one("proxyjump").trim_start_matches("none"), "{text} {host}");
                if let Some(files) = &ours.user_known_hosts {
                    // ssh says them with the home folder in place.
                    let theirs: Vec<&str> = one("userknownhostsfile").split(' ').collect();
                    assert_eq!(files.len(), theirs.len(), "{text} {host}");
                    for (ours, theirs) in files.iter().zip(theirs) {
                        assert!(theirs.ends_with(ours.trim_start_matches('~')), "{text} {host}: {ours} {theirs}");
                    }
                }
                if let Some(files) = &ours.global_known_hosts {
                    assert_eq!(files.join(" "), one("globalknownhostsfile"), "{text} {host}");
                }
                assert_eq!(ours.host_key_alias.as_deref().unwrap_or_default(), one("hostkeyalias"), "{text} {host}");
                assert_eq!(ours.identities_only.unwrap_or(false), one("identitiesonly") == "yes", "{text} {host}");
                if let Some(limit) = ours.connect_timeout {
                    assert_eq!(limit.as_secs().to_string(), one("connecttimeout"), "{text} {host}");
                }
                compared += 1;
            }
        }
        assert_eq!(compared, texts.len() * 6);
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused_with_its_place() {
        for (text, line, word) in [
            ("Host *\n  Port 1\nMatch exec \"true\"\n  ProxyJump x\n", 3, "proxyjump"),
            ("Match host ada\n  User x\n", 1, "user"),
            ("Match final all\n  IdentityFile x\n", 1, "identityfile"),
            ("Match tagged t\n  UserKnownHostsFile /x\n", 1, "userknownhostsfile"),
            ("Match something new\n  Port 9\n", 1, "port"),
        ] {
            let error = said(text, "ada").expect_err(text);
            assert_eq!(error.place, format!("/h/.ssh/config:{line}"), "{text}");
            assert!(error.reason.contains(word) && error.hint.contains("Host"), "{text}: {error:?}");
        }
        // It would change nothing, says nothing that is read, or certainly does not apply.
        for text in [
            "Host *\n  User first\nMatch exec \"true\"\n  User second\n",
            "Match exec \"true\"\n  ForwardAgent yes\n",
            "Match exec \"true\" originalhost other\n  User x\n",
            "Match !originalhost ada exec \"true\"\n  ProxyCommand x\n",
            "Match localuser nobody\n  Port 9\n",
        ] {
            assert!(said(text, "ada").is_ok(), "{text}");
        }
        let way = said("Host x\n  Port 1\nHost ada\n  ProxyCommand ssh -W %h:%p gate\n", "ada").expect("read").way;
        assert_eq!(way, Way::Command { place: "/h/.ssh/config:4".to_owned() });
        for (text, line) in [
            ("Port x\n", 1),
            ("Host ada\n  Port 0\n", 2),
            ("User\n", 1),
            ("Host ada\n  User \"open\n", 2),
            ("\nConnectTimeout soon\n", 2),
            ("ProxyJump @x\n", 1),
            ("IdentitiesOnly perhaps\n", 1),
            ("RevokedHostKeys /k\n", 1),
            ("Include x\n", 1),
        ] {
            let error = said(text, "ada").expect_err(text);
            assert_eq!(error.place, format!("/h/.ssh/config:{line}"), "{text}: {error:?}");
        }
        assert!(said("Host other\n  Port x\n  User \"open\n", "ada").is_ok(), "what does not apply does no harm");
    }

    #[test]
    fn trust_is_not_taken_from_there() {
        let said = said("Host *\n  StrictHostKeyChecking accept-new\n  NoSuchWord 1\n", "ada").expect("read");
        assert_eq!(said.notes, ["/h/.ssh/config:2: `stricthostkeychecking` is not obeyed"]);
    }

    #[test]
    fn includes_count_where_they_stand() {
        let inner = parse("inner", "User inner\nHost deep.lab\n  Port 7\n", &mut |_| Ok(Vec::new()));
        let text = "Host *.lab\n  Include x\n  HostName late\nHost *\n  User outer\n";
        let outer = parse("outer", text, &mut |pattern| {
            assert_eq!(pattern, "x");
            Ok(vec![inner.clone()])
        });
        let at = |host| look_up(std::slice::from_ref(&outer), asked(host)).expect("read");
        let deep = at("deep.lab");
        assert_eq!(
            (deep.user.as_deref(), deep.port, deep.host_name.as_deref()),
            (Some("inner"), Some(7), Some("late"))
        );
        let flat = at("a.lab");
        assert_eq!((flat.user.as_deref(), flat.port, flat.host_name.as_deref()), (Some("inner"), None, Some("late")));
        assert_eq!((at("other").user.as_deref(), at("other").port), (Some("outer"), None));
    }
}
