//! Host certificates: signed by an authority that known_hosts names, for this host, now. The signature and the
//! interval are checked by the `ssh-key` crate, all else here.

use std::time::{SystemTime, UNIX_EPOCH};

use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Certificate, HashAlg, PublicKey};

use crate::base::glob_bytes;

/// What is wrong with a certificate that `authority` is said to have signed for `host`; `None` where it is good.
pub(super) fn problem(certificate: &Certificate, authority: &PublicKey, host: &str) -> Option<String> {
    if certificate.cert_type() != CertType::Host {
        return Some("it is a user's certificate, not a host's".to_owned());
    }
    if let Some((name, _)) = certificate.critical_options().iter().next() {
        return Some(format!("it has the critical option `{}`, which nobody here understands", name.escape_debug()));
    }
    let names = certificate.valid_principals();
    if names.is_empty() {
        return Some("it names no host, so it would vouch for any".to_owned());
    }
    if !names.iter().any(|name| glob_bytes(&name.to_ascii_lowercase(), host)) {
        let names: Vec<String> = names.iter().take(8).map(|name| name.escape_debug().to_string()).collect();
        return Some(format!("it is for {}, not for {host}", names.join(", ")));
    }
    if certificate.validate(&[authority.fingerprint(HashAlg::Sha256)]).is_ok() {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Some(if now < certificate.valid_after() {
        format!("it is valid only in {}", ago(certificate.valid_after() - now))
    } else if now >= certificate.valid_before() {
        format!("it ran out {} ago", ago(now - certificate.valid_before()))
    } else {
        "its signature is not the authority's".to_owned()
    })
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
