//! Which host keys are known: OpenSSH's known_hosts format, read the way ssh reads it, from one file or several.
//!
//! Plain names, patterns with `*`, `?` and `!`, `[host]:port`, hashed names, `@revoked` and `@cert-authority` are
//! understood. A line that cannot be read is skipped, as ssh does.

use std::path::{Path, PathBuf};

use russh::keys::ssh_key::known_hosts::HostPatterns;
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey};

use super::glob::fits_list;
use super::{hashed, host_certificate};

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Key,
    Authority,
    Revoked,
}

/// One usable line.
#[derive(Debug, Clone)]
struct Entry {
    at: KnownAt,
    mark: Mark,
    hosts: HostPatterns,
    key: PublicKey,
}

/// A line of a known_hosts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownAt {
    pub(super) file: PathBuf,
    /// 1-based.
    pub(super) line: usize,
}

/// The names that a host is looked for under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostNames {
    /// Without a port; what certificates name.
    pub(super) host: String,
    /// Bare at port 22, else `[host]:port`.
    pub(super) name: String,
}

impl HostNames {
    /// The names of a host at a port, or its alias, which has none.
    pub(super) fn of(host: &str, port: u16, alias: Option<&str>) -> Self {
        let host = alias.unwrap_or(host).to_ascii_lowercase();
        let name = if port == 22 || alias.is_some() { host.clone() } else { format!("[{host}]:{port}") };
        Self { host, name }
    }
}

/// What known_hosts says about an offered key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The key is there.
    Known,
    /// No entry for this host.
    Unknown,
    /// There are entries for this host, none with this key; here is one.
    Changed(KnownAt),
    /// The key, or the authority that signed it, is marked `@revoked`.
    Revoked(KnownAt),
    /// A trusted authority signed the certificate, and it is not good here.
    BadCertificate(String),
}

/// The lines of known_hosts files.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownHosts {
    entries: Vec<Entry>,
}

impl KnownHosts {
    /// Adds the text of a file.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let lines = text.lines().enumerate();
        self.entries.extend(lines.filter_map(|(index, line)| entry(file, index + 1, line)));
    }

    fn of<'a>(&'a self, mark: Mark, name: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.mark == mark && entry.is_for(name))
    }

    /// The line that revokes a key under either form of the name.
    fn revoked(&self, host: &HostNames, key: &PublicKey) -> Option<Verdict> {
        let mut all = self.of(Mark::Revoked, &host.name).chain(self.of(Mark::Revoked, &host.host));
        all.find(|entry| entry.key.key_data() == key.key_data()).map(|entry| Verdict::Revoked(entry.at.clone()))
    }

    /// What is known about a key that a host offers.
    pub(super) fn check(&self, host: &HostNames, key: &PublicKey) -> Verdict {
        let same = |entry: &&Entry| entry.key.key_data() == key.key_data();
        if let Some(revoked) = self.revoked(host, key) {
            return revoked;
        }
        let known: Vec<&Entry> = self.of(Mark::Key, &host.name).collect();
        if known.iter().any(same) {
            return Verdict::Known;
        }
        let same_algorithm = known.iter().find(|entry| entry.key.algorithm() == key.algorithm());
        if let Some(entry) = same_algorithm.or(known.first()) {
            return Verdict::Changed(entry.at.clone());
        }
        // As ssh: an entry without a port vouches for the same key at another port, and accuses nobody.
        if self.of(Mark::Key, &host.host).any(|entry| same(&entry)) {
            return Verdict::Known;
        }
        Verdict::Unknown
    }

    /// What is known about a certificate that a host offers. By an authority that nobody named, it is worth no more
    /// than its bare key.
    pub(super) fn check_certificate(&self, host: &HostNames, certificate: &Certificate) -> Verdict {
        let key = PublicKey::new(certificate.public_key().clone(), "");
        let authority = PublicKey::new(certificate.signature_key().clone(), "");
        if let Some(revoked) = self.revoked(host, &key).or_else(|| self.revoked(host, &authority)) {
            return revoked;
        }
        let mut named = self.of(Mark::Authority, &host.name).chain(self.of(Mark::Authority, &host.host));
        if !named.any(|entry| entry.key.key_data() == certificate.signature_key()) {
            return self.check(host, &key);
        }
        match host_certificate::problem(certificate, &authority, &host.host) {
            None => Verdict::Known,
            Some(problem) => Verdict::BadCertificate(problem),
        }
    }

    /// The host key algorithms to ask for: those with a known key first, so that a host with several keys is not
    /// taken for a stranger. SHA-1 signatures are never asked for.
    pub(super) fn preferred(&self, host: &HostNames) -> Vec<Algorithm> {
        let known = self.of(Mark::Key, &host.name).chain(self.of(Mark::Key, &host.host));
        let known: Vec<Algorithm> = known.map(|entry| entry.key.algorithm()).collect();
        let is_known = |algorithm: &Algorithm| match algorithm {
            Algorithm::Rsa { .. } => known.iter().any(|known| known.clone().is_rsa()),
            other => known.contains(other),
        };
        let (first, rest): (Vec<_>, Vec<_>) = usable().partition(is_known);
        first.into_iter().chain(rest).collect()
    }

    /// The algorithms to ask for with a certificate: none where no authority is known for the host.
    pub(super) fn preferred_certificates(&self, host: &HostNames) -> Vec<Algorithm> {
        let any = self.of(Mark::Authority, &host.name).chain(self.of(Mark::Authority, &host.host)).next().is_some();
        if any { usable().collect() } else { Vec::new() }
    }
}

fn usable() -> impl Iterator<Item = Algorithm> {
    let offered = russh::Preferred::DEFAULT.key;
    offered.into_owned().into_iter().filter(|algorithm| !matches!(algorithm, Algorithm::Rsa { hash: None }))
}

/// Whether a known_hosts text vouches for a key in OpenSSH's form, `algorithm base64`; `None` where that is no key.
pub fn known_host(text: &str, host: &str, port: u16, key: &str) -> Option<bool> {
    let key = PublicKey::from_openssh(key).ok()?;
    let host = HostNames::of(host, port, None);
    let mut known = KnownHosts::default();
    known.add(Path::new("known_hosts"), text);
    // A host with a known key is asked for that kind of key.
    debug_assert!(!known.preferred(&host).is_empty());
    Some(known.check(&host, &key) == Verdict::Known)
}

/// `SHA256:…`, as ssh-keygen writes it.
pub(super) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

fn entry(file: &Path, line: usize, text: &str) -> Option<Entry> {
    let text = text.trim();
    if text.is_empty() || text.starts_with('#') {
        return None;
    }
    let mut words = text.split_ascii_whitespace();
    let mut first = words.next()?;
    let mark = match first {
        "@revoked" => Mark::Revoked,
        "@cert-authority" => Mark::Authority,
        other if other.starts_with('@') => return None,
        _ => Mark::Key,
    };
    if mark != Mark::Key {
        first = words.next()?;
    }
    let hosts = first.parse().ok()?;
    let key = PublicKey::from_openssh(&format!("{} {}", words.next()?, words.next()?)).ok()?;
    Some(Entry { at: KnownAt { file: file.to_path_buf(), line }, mark, hosts, key })
}

impl Entry {
    fn is_for(&self, name: &str) -> bool {
        match &self.hosts {
            HostPatterns::HashedName { salt, hash } => hashed::matches(name, salt, hash),
            HostPatterns::Patterns(patterns) => {
                let patterns: Vec<String> = patterns.iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
                fits_list(patterns.iter().map(String::as_str), name)
            }
        }
    }
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

    fn known(text: &str) -> KnownHosts {
        let mut known = KnownHosts::default();
        known.add(Path::new("k"), text);
        known
    }

    fn check(text: &str, host: &str, port: u16, offered: &str) -> Verdict {
        known(text).check(&HostNames::of(host, port, None), &key(offered))
    }

    fn at(line: usize) -> KnownAt {
        KnownAt { file: PathBuf::from("k"), line }
    }

    #[test]
    fn plain_entries_know_change_or_say_nothing() {
        let text = format!("# a comment\n\nother {ED2}\nada-1,10.0.0.1\t{ED} comment\n");
        assert_eq!(check(&text, "ada-1", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "ADA-1", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "10.0.0.1", 22, ED2), Verdict::Changed(at(4)));
        assert_eq!(check(&text, "ada-2", 22, ED), Verdict::Unknown);
        assert_eq!(check("ada-1 nonsense\nada-1\n@what ada-1 x y\n", "ada-1", 22, ED), Verdict::Unknown);
    }

    #[test]
    fn ports_have_their_own_name() {
        let text = format!("[ada-1]:2222 {ED}\nada-1 {ED2}\n");
        assert_eq!(check(&text, "ada-1", 2222, ED), Verdict::Known);
        assert_eq!(check(&text, "ada-1", 2222, ED2), Verdict::Changed(at(1)));
        assert_eq!(check(&text, "ada-1", 2200, ED2), Verdict::Known);
        assert_eq!(check(&text, "ada-1", 2200, ED), Verdict::Unknown);
    }

    #[test]
    fn several_key_types_of_one_host() {
        let text = format!("ada-1 {EC}\nada-1 {ED}\n");
        assert_eq!(check(&text, "ada-1", 22, ED), Verdict::Known);
        assert_eq!(check(&text, "ada-1", 22, ED2), Verdict::Changed(at(2)));
        let only = known(&format!("ada-1 {EC}\n"));
        let ada = HostNames::of("ada-1", 22, None);
        assert_eq!(only.preferred(&ada).first(), Some(&key(EC).algorithm()));
        assert_eq!(only.check(&ada, &key(ED)), Verdict::Changed(at(1)));
        assert!(!only.preferred(&ada).contains(&Algorithm::Rsa { hash: None }));
        assert_eq!(only.preferred(&HostNames::of("new", 22, None)).len(), only.preferred(&ada).len());
        assert!(only.preferred_certificates(&ada).is_empty(), "no authority, no certificate");
    }

    #[test]
    fn revoked_keys_stay_revoked() {
        let text = format!("ada-1 {ED}\n@revoked * {ED}\n@cert-authority * {ED2}\n");
        assert_eq!(check(&text, "ada-1", 22, ED), Verdict::Revoked(at(2)));
        assert_eq!(check(&text, "ada-9", 2222, ED), Verdict::Revoked(at(2)));
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
        assert_eq!(check(HASHED, "ada-1", 2222, ED), Verdict::Changed(at(2)));
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
    }

    #[test]
    fn several_files_and_an_alias() {
        let mut both = known(&format!("other {ED}\n"));
        both.add(Path::new("global"), &format!("\nlab-ada {ED}\n"));
        let alias = HostNames::of("10.0.0.1", 2222, Some("Lab-Ada"));
        assert_eq!(both.check(&alias, &key(ED)), Verdict::Known);
        let global = KnownAt { file: PathBuf::from("global"), line: 2 };
        assert_eq!(both.check(&alias, &key(ED2)), Verdict::Changed(global));
        let authority = known(&format!("@cert-authority *.lab {ED}\n"));
        assert!(!authority.preferred_certificates(&HostNames::of("a.lab", 2222, None)).is_empty());
        assert!(authority.preferred_certificates(&HostNames::of("a.elsewhere", 22, None)).is_empty());
    }
}
