//! Texts of the operating system that more than one room reads: the password file and a process's line.

/// A process, as `/proc/PID/stat` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its number.
    pub pid: u32,
    /// `R`, `S`, … ; `Z` for a zombie.
    pub state: char,
    /// Its parent's number.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// When it began, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Reads `/proc/PID/stat` (proc_pid_stat(5)). The name in parentheses may hold anything, parentheses too.
    pub fn parse(text: &str) -> Option<Self> {
        let pid = text.split(' ').next()?.parse().ok()?;
        let rest = text.get(text.rfind(')')? + 1..)?.trim_start();
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            pid,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether nothing of it runs any more, though its parent has not collected it.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The name of a user in the text of a password file (passwd(5)).
pub fn passwd_name(passwd: &str, uid: u32) -> Option<&str> {
    passwd_field(passwd, uid, 0)
}

/// The home of a user in the text of a password file.
pub fn passwd_home(passwd: &str, uid: u32) -> Option<&str> {
    passwd_field(passwd, uid, 5)
}

fn passwd_field(passwd: &str, uid: u32, field: usize) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.clone().nth(2)?.parse() == Ok(uid)).then(|| fields.nth(field))?.filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_homes_by_their_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n# a comment\nbroken\n:x:7:7::/:\nbad:x:8\n\
                      ada:x:1000:1001:Ada:/home/ada:/bin/sh\n";
        assert_eq!((passwd_name(passwd, 0), passwd_home(passwd, 0)), (Some("root"), Some("/root")));
        assert_eq!((passwd_name(passwd, 1000), passwd_home(passwd, 1000)), (Some("ada"), Some("/home/ada")));
        assert_eq!((passwd_name(passwd, 7), passwd_home(passwd, 7)), (None, Some("/")));
        assert_eq!((passwd_name(passwd, 8), passwd_home(passwd, 8)), (Some("bad"), None));
        assert_eq!((passwd_name(passwd, 1001), passwd_name("", 3)), (None, None));
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let rest = "S 1 42 42 0 -1 4194304 1 0 0 0 3 4 0 0 20 0 1 0 98765 1000 10";
        for name in ["sh", "a b", ") S 9 (", "a\nb", ""] {
            let stat = ProcessStat::parse(&format!("42 ({name}) {rest}"));
            let meant = ProcessStat { pid: 42, state: 'S', parent: 1, group: 42, start_ticks: 98_765 };
            assert_eq!(stat, Some(meant), "{name:?}");
        }
        for broken in ["", "42", "42 (sh", "42 (sh) S 1", "x (sh) S 1 42 42"] {
            assert_eq!(ProcessStat::parse(broken), None, "{broken:?}");
        }
    }
}
