//! Which host keys are known: OpenSSH's known_hosts format, read the way ssh reads it.
//!
//! Plain names, patterns with `*`, `?` and `!`, `[host]:port`, hashed names and `@revoked` are understood.
//! `@cert-authority` lines are skipped: certificates are never asked for. A line that cannot be read is skipped,
//! as ssh does.

use russh::keys::ssh_key::known_hosts::HostPatterns;
use russh::keys::{Algorithm, HashAlg, PublicKey};

use super::hashed;

/// One usable line.
#[derive(Debug, Clone)]
struct Entry {
    line: usize,
    revoked: bool,
    hosts: HostPatterns,
    key: PublicKey,
}

/// What known_hosts says about an offered key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The key is there.
    Known,
    /// No entry for this host.
    Unknown,
    /// There are entries for this host, none with this key.
    Changed {
        /// 1-based line of the entry that differs.
        line: usize,
    },
    /// The key is marked `@revoked`.
    Revoked {
        /// 1-based line of the mark.
        line: usize,
    },
}

/// The lines of a known_hosts file.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownHosts {
    entries: Vec<Entry>,
}

impl KnownHosts {
    /// Reads the text of a file.
    pub(super) fn parse(text: &str) -> Self {
        let entries = text.lines().enumerate().filter_map(|(index, line)| entry(index + 1, line)).collect();
        Self { entries }
    }

    /// What is known about `key` offered by `host` at `port`.
    pub(super) fn check(&self, host: &str, port: u16, key: &PublicKey) -> Verdict {
        let name = host_name(host, port);
        let same = |entry: &&Entry| entry.key.key_data() == key.key_data();
        // A key that was revoked under either form of the name stays revoked.
        let plain = host_name(host, 22);
        if let Some(entry) =
            self.entries.iter().filter(|e| e.revoked && (e.is_for(&name) || e.is_for(&plain))).find(same)
        {
            return Verdict::Revoked { line: entry.line };
        }
        let known: Vec<&Entry> = self.entries.iter().filter(|entry| !entry.revoked && entry.is_for(&name)).collect();
        if known.iter().any(same) {
            return Verdict::Known;
        }
        let same_algorithm = known.iter().find(|entry| entry.key.algorithm() == key.algorithm());
        if let Some(entry) = same_algorithm.or(known.first()) {
            return Verdict::Changed { line: entry.line };
        }
        // As ssh: an entry without a port vouches for the same key at another port, and accuses nobody.
        if self.entries.iter().filter(|entry| !entry.revoked && entry.is_for(&plain)).any(|entry| same(&entry)) {
            return Verdict::Known;
        }
        Verdict::Unknown
    }

    /// The host key algorithms to ask for: those with a known key first, so that a host with several keys is not
    /// taken for a stranger. SHA-1 signatures are never asked for.
    pub(super) fn preferred(&self, host: &str, port: u16) -> Vec<Algorithm> {
        let (name, plain) = (host_name(host, port), host_name(host, 22));
        let known: Vec<Algorithm> = self
            .entries
            .iter()
            .filter(|entry| !entry.revoked && (entry.is_for(&name) || entry.is_for(&plain)))
            .map(|entry| entry.key.algorithm())
            .collect();
        let is_known = |algorithm: &Algorithm| match algorithm {
            Algorithm::Rsa { .. } => known.iter().any(|known| known.clone().is_rsa()),
            other => known.contains(other),
        };
        let offered = russh::Preferred::DEFAULT.key;
        let all = || offered.iter().filter(|algorithm| !matches!(algorithm, Algorithm::Rsa { hash: None }));
        all().filter(|a| is_known(a)).chain(all().filter(|a| !is_known(a))).cloned().collect()
    }
}

/// `SHA256:…`, as ssh-keygen writes it.
pub(super) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// How known_hosts names a host: bare at port 22, else `[host]:port`; in lower case.
fn host_name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

fn entry(line: usize, text: &str) -> Option<Entry> {
    let text = text.trim();
    if text.is_empty() || text.starts_with('#') {
        return None;
    }
    let mut words = text.split_ascii_whitespace();
    let mut first = words.next()?;
    let revoked = first == "@revoked";
    if revoked {
        first = words.next()?;
    } else if first.starts_with('@') {
        return None;
    }
    let hosts = first.parse().ok()?;
    let key = PublicKey::from_openssh(&format!("{} {}", words.next()?, words.next()?)).ok()?;
    Some(Entry { line, revoked, hosts, key })
}

impl Entry {
    fn is_for(&self, name: &str) -> bool {
        match &self.hosts {
            HostPatterns::HashedName { salt, hash } => hashed::matches(name, salt, hash),
            HostPatterns::Patterns(patterns) => {
                let mut found = false;
                for pattern in patterns {
                    let (negated, pattern) =
                        pattern.strip_prefix('!').map_or((false, pattern.as_str()), |rest| (true, rest));
                    if glob(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes()) {
                        if negated {
                            return false;
                        }
                        found = true;
                    }
                }
                found
            }
        }
    }
}

/// `*` for any run, `?` for one byte; linear in both, whatever the pattern.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[read] => {
                at += 1;
                read += 1;
            }
            _ => match star {
                Some((star_at, covered)) => {
                    star = Some((star_at, covered + 1));
                    at = star_at + 1;
                    read = covered + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";
    const ED2: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN+Wjn4+4Fcvl2JlKpggT+wCRxpSvtqqpVrQrKN1/A22";
    const EC: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg=";

    fn key(text: &str) -> PublicKey {
        PublicKey::from_openssh(text).expect("a key")
    }

    fn check(text: &str, host: &str, port: u16, offered: &str) -> Verdict {
        KnownHosts::parse(text).check(host, port, &key(offered))
    }

    #[test]
    fn plain_entries_know_change_or_say_nothing() {
        let text = format!("# a comment\n\nother {ED2}\nada-1,10.0.0.1\t{ED} comment\n");
        assert_eq!(check(&text, "ada-1", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "ADA-1", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "10.0.0.1", 22, ED2), Verdict::Changed { line: 4 });
        assert_eq!(check(&text, "ada-2", 22, ED), Verdict::Unknown);
        assert_eq!(check("ada-1 nonsense\nada-1\n@what ada-1 x y\n", "ada-1", 22, ED), Verdict::Unknown);
    }

    #[test]
    fn ports_have_their_own_name() {
        let text = format!("[ada-1]:2222 {ED}\nada-1 {ED2}\n");
        assert_eq!(check(&text, "ada-1", 2222, ED), Verdict::Known);
        assert_eq!(check(&text, "ada-1", 2222, ED2), Verdict::Changed { line: 1 });
        assert_eq!(check(&text, "ada-1", 2200, ED2), Verdict::Known);
        assert_eq!(check(&text, "ada-1", 2200, ED), Verdict::Unknown);
    }

    #[test]
    fn several_key_types_of_one_host() {
        let text = format!("ada-1 {EC}\nada-1 {ED}\n");
        let known = KnownHosts::parse(&text);
        assert_eq!(known.check("ada-1", 22, &key(ED)), Verdict::Known);
        assert_eq!(known.check("ada-1", 22, &key(ED2)), Verdict::Changed { line: 2 });
        let only = KnownHosts::parse(&format!("ada-1 {EC}\n"));
        assert_eq!(only.preferred("ada-1", 22).first(), Some(&key(EC).algorithm()));
        assert_eq!(only.check("ada-1", 22, &key(ED)), Verdict::Changed { line: 1 });
        assert!(!only.preferred("ada-1", 22).contains(&Algorithm::Rsa { hash: None }));
        assert_eq!(only.preferred("new", 22).len(), only.preferred("ada-1", 22).len());
    }

    #[test]
    fn revoked_keys_stay_revoked() {
        let text = format!("ada-1 {ED}\n@revoked * {ED}\n@cert-authority * {ED2}\n");
        assert_eq!(check(&text, "ada-1", 22, ED), Verdict::Revoked { line: 2 });
        assert_eq!(check(&text, "ada-9", 2222, ED), Verdict::Revoked { line: 2 });
        assert_eq!(check(&text, "ada-9", 22, ED2), Verdict::Unknown);
    }

    #[test]
    fn names_hashed_by_ssh_keygen() {
        const HASHED: &str = "\
|1|N5Ym03JjYEyGe4bwLmFQytgbLUw=|EsBdUCOddFFH9XdfxHwTnuzO9Fg= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPNHEt1CD8TXo7u7SFkhPdxkLDJawvupgeaWiTiHXvri
|1|Ut0rGxHdfHgsSC+YSWqnPWk6iKs=|+UtzA4IdN5gDvLWwwqg75HrF83g= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPNHEt1CD8TXo7u7SFkhPdxkLDJawvupgeaWiTiHXvri";
        let offered = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPNHEt1CD8TXo7u7SFkhPdxkLDJawvupgeaWiTiHXvri";
        assert_eq!(check(HASHED, "ada-1", 22, offered), Verdict::Known);
        assert_eq!(check(HASHED, "ada-1", 2222, offered), Verdict::Known);
        assert_eq!(check(HASHED, "ada-1", 2222, ED), Verdict::Changed { line: 2 });
        assert_eq!(check(HASHED, "ada-2", 22, offered), Verdict::Unknown);
        assert_eq!(fingerprint(&key(offered)), "SHA256:E4XE6y9jYiWWLJ69tqqQcEes9j12h/Go5rKVf6m5C64");
    }

    #[test]
    fn patterns_and_negations() {
        let text = format!("*.lab,!bad.lab,node-? {ED}\n");
        assert_eq!(check(&text, "a.lab", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "bad.lab", 22, ED), Verdict::Unknown);
        assert_eq!(check(&text, "node-1", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "node-12", 22, ED), Verdict::Unknown);
        assert!(glob(b"*a*a*a*a*a*b", b"aaaaaaaaaaaaaaaaaaaaaaaab"));
        assert!(!glob(b"*a*a*a*a*a*b", &[b'a'; 4000]));
    }
}
