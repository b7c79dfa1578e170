//! Whose a process is, as far as anybody may know: its user and the program's name, never its arguments.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::base::{one_line, passwd_name};

/// The users of this machine, read once.
pub struct People {
    passwd: String,
}

impl People {
    /// From `/etc/passwd`; users that only a directory service knows are named by their number.
    pub fn read() -> Self {
        Self {
            passwd: fs::read("/etc/passwd").map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default(),
        }
    }

    /// A user's name.
    pub fn name(&self, uid: u32) -> String {
        passwd_name(&self.passwd, uid).map_or_else(|| uid.to_string(), str::to_owned)
    }

    /// The user of a process.
    pub fn of(&self, pid: u32) -> Option<String> {
        Some(self.name(fs::metadata(format!("/proc/{pid}")).ok()?.uid()))
    }
}

/// The name of a process's program, at most the kernel's 15 bytes.
pub fn command(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = one_line(&String::from_utf8_lossy(&name));
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_user_and_program() {
        let people =
            People { passwd: "root:x:0:0:root:/root:/bin/sh\n:x:7:7::/:\nbroken\nada:x:1000:1:A:/h:/s\n".into() };
        assert_eq!([people.name(0), people.name(1000), people.name(7)], ["root", "ada", "7"]);
        let own = std::process::id();
        assert!(People::read().of(own).is_some() && command(own).is_some());
        assert!(people.of(u32::MAX).is_none() && command(u32::MAX).is_none());
    }
}
