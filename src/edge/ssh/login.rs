//! From what flock's config and ssh's say to the logins of a way: each hop's, then the node's.
//!
//! flock's own `ssh` block comes first, then `~/.ssh/config`, then `/etc/ssh/ssh_config`, then ssh's defaults. The
//! first hop's own `ProxyJump` is followed, as ssh does; later hops' are not.

use std::path::PathBuf;
use std::time::Duration;

use super::client_config::{Asked, Said, Way, look_up};
use super::config_lines::{ConfigFile, parse};
use super::known_hosts::HostNames;
use super::tokens::expand;
use crate::base::{Hop, MAX_HOPS, escape_obeyed, expand_home, is_obeyed};
use crate::ports::NodeError;

/// Deadline of each step of connecting, where nobody says one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What ssh offers unless told.
const DEFAULT_IDENTITIES: [&str; 5] =
    ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa", "~/.ssh/id_ed25519_sk", "~/.ssh/id_ecdsa_sk"];
const USER_KNOWN_HOSTS: [&str; 2] = ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"];
const GLOBAL_KNOWN_HOSTS: [&str; 2] = ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"];

/// Where a node is and who to be there, as flock's config says it. What it leaves out, ssh's config says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SshTarget {
    /// The node's configured name.
    pub node: String,
    /// The cluster's name, which the agent keeps its state under.
    pub cluster: String,
    /// Host name, address, or a `Host` of the SSH config.
    pub address: String,
    /// TCP port of its sshd.
    pub port: Option<u16>,
    /// Login name.
    pub user: Option<String>,
    /// Private keys to offer, in order. The keys of ssh-agent follow.
    pub identities: Vec<PathBuf>,
    /// The file of known host keys.
    pub known_hosts: Option<PathBuf>,
    /// Deadline of each step of connecting: TCP, handshake, login.
    pub connect_timeout: Option<Duration>,
    /// Hosts to go through; empty for straight there.
    pub jump: Option<Vec<Hop>>,
    /// Whether an unknown host key is recorded and trusted. Only flock's own config may say so.
    pub trust_on_first_use: bool,
    /// The host key that an earlier apply verified (`algorithm base64`): it counts where no known_hosts file knows
    /// the host.
    pub recorded_key: Option<String>,
}

/// Whose machine this is, and where ssh keeps things on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshEnvironment {
    /// The user's home folder.
    pub home: PathBuf,
    /// The user's login name.
    pub user: String,
    /// The user's SSH config file.
    pub config: PathBuf,
    /// The machine's SSH config file.
    pub system_config: PathBuf,
    /// The socket of ssh-agent.
    pub agent_socket: Option<PathBuf>,
}

impl SshEnvironment {
    /// As ssh finds them, for a user.
    pub fn of_user(home: PathBuf, user: String) -> Self {
        let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()).map(PathBuf::from);
        let config = home.join(".ssh/config");
        Self { home, user, config, system_config: "/etc/ssh/ssh_config".into(), agent_socket: socket }
    }
}

/// A private key file to offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) path: PathBuf,
    /// Nobody asked for it: it may be missing.
    pub(super) usual: bool,
}

/// One host, with all that is needed to be let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) names: HostNames,
    /// New keys go into the first.
    pub(super) known_hosts: Vec<PathBuf>,
    pub(super) identities: Vec<Identity>,
    pub(super) identities_only: bool,
    pub(super) agent_socket: Option<PathBuf>,
    pub(super) connect_timeout: Duration,
    pub(super) trust_on_first_use: bool,
    pub(super) recorded_key: Option<String>,
}

impl Login {
    /// `host:port`, with IPv6 addresses in brackets.
    pub(super) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// As a hop that needs no config.
    pub(super) fn as_hop(&self) -> Hop {
        Hop { user: Some(self.user.clone()), host: self.host.clone(), port: (self.port != 22).then_some(self.port) }
    }
}

/// The way to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) hops: Vec<Login>,
    pub(super) target: Login,
}

/// Finds the way to a target.
pub(super) fn route(
    target: &SshTarget,
    files: &[ConfigFile],
    environment: &SshEnvironment,
) -> Result<Route, NodeError> {
    let finder = Finder { target, files, environment };
    let said = finder.look_up(&target.address, target.user.as_deref())?;
    for note in &said.notes {
        tracing::debug!(node = %target.node, "{note}");
    }
    let last = finder.login(&target.address, None, &said)?;
    // The names whose own jumps were followed: meeting one again would never end.
    let mut followed = Vec::new();
    let jump = match (&target.jump, &said.way) {
        (Some(hops), _) => hops.clone(),
        (None, Way::Unsaid) => Vec::new(),
        (None, Way::Jump(hops)) => {
            followed.push(target.address.clone());
            finder.hops(hops, &target.address, &last)?
        }
        (None, Way::Command { place }) => return Err(no_command(place, &target.address)),
    };
    let hops = finder.logins(&jump, &mut followed)?;
    Ok(Route { hops, target: last })
}

fn no_command(place: &str, host: &str) -> NodeError {
    refused(
        place,
        &format!("`ProxyCommand` applies to `{host}`, and flock runs no proxy commands"),
        "if it goes through a host, write `ProxyJump HOST` there, or `ssh jump=\"HOST\"` in cluster.kdl.",
    )
}

/// A refusal; what it quotes of the files is fit to be shown.
pub(super) fn refused(place: &str, reason: &str, hint: &str) -> NodeError {
    let fit = |text| escape_obeyed(text).into_owned();
    NodeError::SshConfig { place: fit(place), reason: fit(reason), hint: fit(hint) }
}

/// The way to a host as the text of one `ssh_config` has it, for a user: logins in the order they are made, the host
/// itself last, as `ada@gate:22 ada@10.0.0.1:2222`. Nothing is read besides; the text includes nothing.
///
/// # Errors
///
/// [`NodeError::SshConfig`] with what flock does not follow, and where.
pub fn ssh_way(text: &str, host: &str, environment: &SshEnvironment) -> Result<String, NodeError> {
    let name = environment.config.display().to_string();
    let file = parse(&name, text, &mut |_| Err("an `Include` in a text alone".to_owned()));
    let target = SshTarget { node: host.to_owned(), address: host.to_owned(), ..SshTarget::default() };
    let Route { hops, target } = route(&target, &[file], environment)?;
    let logins: Vec<String> =
        hops.iter().chain([&target]).map(|login| format!("{}@{}", login.user, login.address())).collect();
    Ok(logins.join(" "))
}

struct Finder<'a> {
    target: &'a SshTarget,
    files: &'a [ConfigFile],
    environment: &'a SshEnvironment,
}

impl Finder<'_> {
    fn look_up(&self, host: &str, user: Option<&str>) -> Result<Said, NodeError> {
        let asked = Asked { host: bare(host), user, local_user: &self.environment.user };
        look_up(self.files, asked).map_err(|error| refused(&error.place, &error.reason, &error.hint))
    }

    /// The logins of hops in order, the first one's own jumps before it.
    fn logins(&self, hops: &[Hop], followed: &mut Vec<String>) -> Result<Vec<Login>, NodeError> {
        let mut logins = Vec::new();
        for (index, hop) in hops.iter().enumerate() {
            let said = self.look_up(&hop.host, hop.user.as_deref())?;
            let login = self.login(&hop.host, Some(hop), &said)?;
            match &said.way {
                Way::Jump(more) if index == 0 && !more.is_empty() => {
                    if followed.contains(&hop.host) || followed.len() > MAX_HOPS {
                        return Err(self.loops(&hop.host));
                    }
                    followed.push(hop.host.clone());
                    let more = self.hops(more, &hop.host, &login)?;
                    logins.extend(self.logins(&more, followed)?);
                }
                Way::Command { place } if index == 0 => return Err(no_command(place, &hop.host)),
                _ => {}
            }
            logins.push(login);
        }
        Ok(logins)
    }

    fn loops(&self, host: &str) -> NodeError {
        refused(
            &format!("the way to `{}`", self.target.address),
            &format!("`{host}` would be gone through to reach itself"),
            &format!(
                "take it out of the pattern that names the jump: `Host PATTERN !{host}`, or give the jump host `ProxyJump none`."
            ),
        )
    }

    /// Hops with their tokens replaced.
    fn hops(&self, hops: &[Hop], original: &str, login: &Login) -> Result<Vec<Hop>, NodeError> {
        hops.iter()
            .map(|hop| {
                let token = |letter| match letter {
                    'h' => Some(login.host.clone()),
                    'n' => Some(original.to_owned()),
                    'p' => Some(login.port.to_string()),
                    'r' => Some(login.user.clone()),
                    _ => None,
                };
                let host = self.expand(&hop.host, &token)?;
                Ok(Hop { host, ..hop.clone() })
            })
            .collect()
    }

    fn expand(&self, text: &str, token: &dyn Fn(char) -> Option<String>) -> Result<String, NodeError> {
        expand(text, token, &|name| std::env::var(name).ok())
            .map_err(|reason| self.about_the_file(&reason, "write the value out."))
    }

    fn about_the_file(&self, reason: &str, hint: &str) -> NodeError {
        refused(&self.environment.config.display().to_string(), reason, hint)
    }

    /// The login at a host; `hop` for one that is only gone through.
    fn login(&self, written: &str, hop: Option<&Hop>, said: &Said) -> Result<Login, NodeError> {
        let original = bare(written);
        let host = match &said.host_name {
            Some(name) => self.expand(name, &|letter| (letter == 'h').then(|| original.to_owned()))?,
            None => original.to_owned(),
        };
        let target = self.target;
        let port = hop.map_or(target.port, |hop| hop.port).or(said.port).unwrap_or(22);
        // Who the block says to be on the nodes is also the guess for the hosts before them.
        let user = match hop {
            Some(hop) => hop.user.clone().or_else(|| said.user.clone()).or_else(|| target.user.clone()),
            None => target.user.clone().or_else(|| said.user.clone()),
        };
        let user = user.unwrap_or_else(|| self.environment.user.clone());
        for (what, text) in [("host name", &host), ("login name", &user)] {
            if let Some(odd) = text.chars().find(|c| c.is_control() || is_obeyed(*c)) {
                let reason = format!("the {what} for `{original}` holds U+{:04X}", u32::from(odd));
                return Err(self.about_the_file(&reason, "write the name without it."));
            }
        }

        let token = |letter| match letter {
            'd' => Some(self.environment.home.display().to_string()),
            'h' => Some(host.clone()),
            'n' => Some(original.to_owned()),
            'k' => Some(said.host_key_alias.clone().unwrap_or_else(|| original.to_owned())),
            'p' => Some(port.to_string()),
            'r' => Some(user.clone()),
            'u' => Some(self.environment.user.clone()),
            _ => None,
        };
        let path = |text: &str| -> Result<PathBuf, NodeError> {
            let text = self.expand(text, &token)?;
            // A path that is not absolute is from where ssh was started; flock has no such place but the home folder.
            Ok(self.environment.home.join(expand_home(&text, self.environment.home.to_str())))
        };
        let paths = |texts: &[String]| texts.iter().map(|text| path(text)).collect::<Result<Vec<_>, _>>();
        let usual = |texts: &[&str]| texts.iter().map(|text| path(text)).collect::<Result<Vec<_>, _>>();

        let own = target.identities.iter().cloned().map(|path| Identity { path, usual: false });
        let mut identities: Vec<Identity> = own.collect();
        if identities.is_empty() || hop.is_some() {
            let named = said.identity_files.iter().filter(|file| !file.eq_ignore_ascii_case("none"));
            for file in named {
                identities.push(Identity { path: path(file)?, usual: false });
            }
        }
        if identities.is_empty() && said.identity_files.is_empty() {
            identities.extend(usual(&DEFAULT_IDENTITIES)?.into_iter().map(|path| Identity { path, usual: true }));
        }

        let mut known_hosts: Vec<PathBuf> = target.known_hosts.iter().cloned().collect();
        if known_hosts.is_empty() || hop.is_some() {
            known_hosts.extend(match &said.user_known_hosts {
                Some(files) => paths(files)?,
                None => usual(&USER_KNOWN_HOSTS)?,
            });
        }
        known_hosts.extend(match &said.global_known_hosts {
            Some(files) => paths(files)?,
            None => usual(&GLOBAL_KNOWN_HOSTS)?,
        });

        let agent_socket = match said.identity_agent.as_deref() {
            None | Some("SSH_AUTH_SOCK") => self.environment.agent_socket.clone(),
            Some(none) if none.eq_ignore_ascii_case("none") => None,
            Some(text) => match text.strip_prefix('$').filter(|name| !name.starts_with('{')) {
                Some(name) => std::env::var_os(name).map(PathBuf::from),
                None => Some(path(text)?),
            },
        };
        Ok(Login {
            names: HostNames::of(&host, port, said.host_key_alias.as_deref()),
            host,
            port,
            user,
            known_hosts,
            identities,
            identities_only: said.identities_only.unwrap_or(false),
            agent_socket,
            connect_timeout: target.connect_timeout.or(said.connect_timeout).unwrap_or(CONNECT_TIMEOUT),
            trust_on_first_use: target.trust_on_first_use,
            recorded_key: if hop.is_some() { None } else { target.recorded_key.clone() },
        })
    }
}

/// A host without the brackets that an IPv6 address may be written in.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> SshEnvironment {
        SshEnvironment {
            home: "/home/ada".into(),
            user: "ada".to_owned(),
            config: "/home/ada/.ssh/config".into(),
            system_config: "/etc/ssh/ssh_config".into(),
            agent_socket: Some("/agent".into()),
        }
    }

    fn target(address: &str) -> SshTarget {
        SshTarget {
            node: "n".to_owned(),
            cluster: "lab".to_owned(),
            address: address.to_owned(),
            ..SshTarget::default()
        }
    }

    fn find(target: &SshTarget, user: &str, system: &str) -> Result<Route, NodeError> {
        let read = |name, text| parse(name, text, &mut |_| Ok(Vec::new()));
        route(target, &[read("u", user), read("s", system)], &environment())
    }

    fn addresses(route: &Route) -> Vec<String> {
        let all = route.hops.iter().chain([&route.target]);
        all.map(|login| format!("{}@{}", login.user, login.address())).collect()
    }

    #[test]
    fn flock_then_the_user_then_the_machine_then_the_defaults() {
        let user = "Host node\n  HostName %h.lab.example\n  User u\n  IdentityFile ~/.ssh/id_%h\n  HostKeyAlias box\n";
        let system = "Host *\n  User s\n  Port 2222\n  IdentityFile /etc/keys/%u\n";
        let login = find(&target("node"), user, system).expect("a way").target;
        assert_eq!((login.host.as_str(), login.port, login.user.as_str()), ("node.lab.example", 2222, "u"));
        let files: Vec<_> = login.identities.iter().map(|identity| identity.path.display().to_string()).collect();
        assert_eq!(files, ["/home/ada/.ssh/id_node.lab.example", "/etc/keys/ada"]);
        assert_eq!(login.names.name, "box");
        assert_eq!(login.known_hosts[0], PathBuf::from("/home/ada/.ssh/known_hosts"));

        let own = SshTarget {
            user: Some("root".to_owned()),
            port: Some(22),
            identities: vec!["/k".into()],
            known_hosts: Some("/kh".into()),
            ..target("node")
        };
        let login = find(&own, user, system).expect("a way").target;
        assert_eq!((login.port, login.user.as_str(), login.identities.len()), (22, "root", 1));
        assert_eq!(login.known_hosts[0], PathBuf::from("/kh"));
        assert!(!login.known_hosts.contains(&PathBuf::from("/home/ada/.ssh/known_hosts")), "only the one it names");

        let plain = find(&target("[::1]"), "", "").expect("a way").target;
        assert_eq!((plain.address().as_str(), plain.user.as_str()), ("[::1]:22", "ada"));
        assert!(plain.identities.iter().all(|identity| identity.usual));
        assert!(find(&target("n"), "IdentityFile none\n", "").expect("a way").target.identities.is_empty());
    }

    #[test]
    fn nothing_of_the_files_moves_the_cursor() {
        let environment = environment();
        let way = |text: &str| ssh_way(text, "n1", &environment);
        let found = way("Host n*\n  ProxyJump g@gate\n  Port 2\n").expect("a way");
        assert_eq!(found, "g@gate:22 ada@n1:2");
        for (text, word) in [
            ("\u{1b}[2J \"open\n", "\\u{1b}[2j"),
            ("HostName \"a\u{9b}b\"\n", "the host name for `n1` holds U+009B"),
            ("User \"a\u{202e}\"\n", "the login name for `n1` holds U+202E"),
            ("HostName ${\u{7f}}\n", "\\u{7f}"),
            ("Include \u{1b}\n", "an `Include`"),
        ] {
            let error = way(text).expect_err(text).to_string();
            assert!(error.contains(word) && !error.contains(|c: char| c.is_control()), "{text:?}: {error}");
        }
    }

    #[test]
    fn hops_are_looked_up_too_and_the_first_ones_own_jump_is_followed() {
        let config = "Host n*\n  ProxyJump gate,inner:2222\nHost gate\n  HostName gate.example\n  User g\n  ProxyJump outer\n\
                      Host inner\n  User i\n  ProxyJump never\n";
        let found = find(&target("n1"), config, "").expect("a way");
        assert_eq!(addresses(&found), ["ada@outer:22", "g@gate.example:22", "i@inner:2222", "ada@n1:22"]);

        let own = |jump: &str| SshTarget {
            user: Some("root".to_owned()),
            port: Some(2000),
            jump: Some(Hop::parse_row(jump).expect("hops")),
            ..target("n1")
        };
        let found = find(&own("me@gate:1"), config, "").expect("a way");
        assert_eq!(addresses(&found), ["root@outer:22", "me@gate.example:1", "root@n1:2000"]);
        assert_eq!(addresses(&find(&own("none"), config, "").expect("a way")), ["root@n1:2000"]);
        let found = find(&target("n1"), "Host n*\n  ProxyJump gate-%h\n", "").expect("a way");
        assert_eq!(addresses(&found), ["ada@gate-n1:22", "ada@n1:22"]);
    }

    #[test]
    fn loops_and_proxy_commands_are_refused() {
        let error = find(&target("a.lab"), "Host *.lab\n  ProxyJump gate.lab\n", "").expect_err("a loop");
        assert!(error.to_string().contains("`gate.lab` would be gone through to reach itself"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("!gate.lab")));
        let config = "Host a\n  ProxyCommand nc %h %p\nHost b\n  ProxyJump a\n";
        for name in ["a", "b"] {
            let error = find(&target(name), config, "").expect_err("a command");
            assert!(error.to_string().starts_with("u:2: `ProxyCommand`"), "{error}");
        }
        let own = SshTarget { jump: Some(Vec::new()), ..target("a") };
        assert!(find(&own, config, "").is_ok(), "flock's own jump comes before it");
    }
}
