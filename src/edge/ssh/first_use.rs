//! Trust on first use: an unknown host key is written to known_hosts, once, and holds from then on.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use russh::keys::PublicKey;

use super::known_hosts::{HostNames, KnownHosts, Verdict};

/// Records a key that no file knows, and says what the file says then: another process, or another node at the same
/// address, may have been first, and with another key. `true` where the line is new. Blocks: other writers are
/// waited for.
pub(super) fn record(path: &Path, host: &HostNames, key: &PublicKey) -> std::io::Result<(Verdict, bool)> {
    // A pattern, a list or a line's end in it would vouch for hosts that nobody has seen.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:%-[]".contains(c);
    if host.name.is_empty() || !host.name.chars().all(plain) {
        let text = format!("`{}` is not the name of one host", host.name.escape_debug());
        return Err(std::io::Error::other(text));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    file.lock()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut known = KnownHosts::default();
    known.add(path, &String::from_utf8_lossy(&bytes));
    let verdict = known.check(host, key);
    if verdict != Verdict::Unknown {
        return Ok((verdict, false));
    }
    let text = PublicKey::new(key.key_data().clone(), "").to_openssh().map_err(std::io::Error::other)?;
    let newline = if bytes.last().is_some_and(|byte| *byte != b'\n') { "\n" } else { "" };
    // One write: a reader sees the whole line or none.
    file.write_all(format!("{newline}{} {}\n", host.name, text.trim_end()).as_bytes())?;
    file.sync_all()?;
    Ok((Verdict::Known, true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";
    const ED2: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN+Wjn4+4Fcvl2JlKpggT+wCRxpSvtqqpVrQrKN1/A22";

    fn key(text: &str) -> PublicKey {
        PublicKey::from_openssh(text).expect("a key")
    }

    #[test]
    fn sixteen_writers_make_one_line_and_the_first_key_stays() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join(".ssh/known_hosts");
        let host = HostNames::of("ada-1", 2222, None);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let (verdict, _) = record(&path, &host, &key(ED)).expect("recorded");
                    assert_eq!(verdict, Verdict::Known);
                });
            }
        });
        let text = std::fs::read_to_string(&path).expect("there");
        assert_eq!(text, format!("[ada-1]:2222 {ED}\n"));
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&home.path().join(".ssh"))), (0o600, 0o700));
        let (verdict, new) = record(&path, &host, &key(ED2)).expect("read");
        assert!(matches!(verdict, Verdict::Changed(_)) && !new);
    }

    #[test]
    fn a_name_that_would_vouch_for_others_is_not_recorded() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("known_hosts");
        for name in ["x,*", "*", "?", "!x", "a b", "a\nb", "|1|x", "@cert-authority", "", "#x"] {
            assert!(record(&path, &HostNames::of(name, 22, None), &key(ED)).is_err(), "{name:?}");
            assert!(record(&path, &HostNames::of("ada-1", 22, Some(name)), &key(ED)).is_err(), "{name:?}");
        }
        assert!(!path.exists());
        for (host, port) in [("fe80::1%eth0", 22), ("fe80::1", 2222), ("a-1.example_org", 22)] {
            record(&path, &HostNames::of(host, port, None), &key(ED)).expect("recorded");
        }
    }

    #[test]
    fn a_last_line_without_its_end_is_not_joined() {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("known_hosts");
        std::fs::write(&path, format!("other {ED2}")).expect("written");
        record(&path, &HostNames::of("ada-1", 22, None), &key(ED)).expect("recorded");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), format!("other {ED2}\nada-1 {ED}\n"));
    }
}
