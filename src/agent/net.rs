//! TCP ports of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use rustix::net::AddressFamily;

use super::error::AgentError;
use super::who::{self, People};
use crate::inventory::Listener;

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Socket {
    port: u16,
    uid: u32,
    inode: u64,
    /// Connections that wait to be accepted.
    waiting: u32,
}

/// Listening sockets, from the text of `/proc/net/tcp` or `/proc/net/tcp6`.
fn listed(table: &str) -> Vec<Socket> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let port = u16::from_str_radix(fields.get(1)?.rsplit_once(':')?.1, 16).ok()?;
        let waiting = u32::from_str_radix(fields.get(4)?.rsplit_once(':')?.1, 16).ok()?;
        let found = Socket { port, uid: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()?, waiting };
        (*fields.get(3)? == "0A").then_some(found)
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// All listening sockets now. The kernel is asked for those alone: its text has every connection in it, and costs
/// milliseconds where there are many. Where it has no such answer (no `inet_diag`, a sandbox), the text has to do.
fn sockets() -> Result<Vec<Socket>, AgentError> {
    if let (Some(mut found), Some(more)) = (diag::listening(AddressFamily::INET), diag::listening(AddressFamily::INET6))
    {
        found.extend(more);
        return Ok(found);
    }
    let path = Path::new("/proc/net/tcp");
    let mut found = listed(&fs::read_to_string(path).map_err(AgentError::file("reading", path))?);
    found.extend(listed(&fs::read_to_string("/proc/net/tcp6").unwrap_or_default()));
    Ok(found)
}

/// The kernel's socket diagnostics: `sock_diag(7)`.
mod diag {
    use std::time::Duration;

    use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

    use super::Socket;

    const HEADER: usize = 16;
    const REQUEST: usize = HEADER + 56;
    /// `SOCK_DIAG_BY_FAMILY`, `NLMSG_DONE`.
    const BY_FAMILY: u16 = 20;
    const DONE: u16 = 3;
    /// `NLM_F_REQUEST | NLM_F_DUMP`, and the flag of an answer during which the table changed under the kernel.
    const DUMP: u16 = 0x301;
    const INTERRUPTED: u16 = 0x10;
    const TCP: u8 = 6;
    /// `1 << TCP_LISTEN`.
    const LISTENING: u32 = 1 << 10;
    /// As much as the kernel puts into one piece of an answer.
    const PIECE: usize = 32 << 10;
    /// The kernel answers at once or not at all.
    const LIMIT: Duration = Duration::from_secs(1);

    /// Listening TCP sockets of a family; `None` where this cannot be had, or not in one piece.
    pub fn listening(family: AddressFamily) -> Option<Vec<Socket>> {
        let kernel = SocketAddrNetlink::new(0, 0);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(SOCK_DIAG));
        let socket = socket.ok()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).ok()?;
        sendto(&socket, &request(u8::try_from(family.as_raw()).ok()?), SendFlags::empty(), &kernel).ok()?;
        let (mut buffer, mut found) = (vec![0; PIECE], Vec::new());
        loop {
            let (read, whole) = recv(&socket, buffer.as_mut_slice(), RecvFlags::TRUNC).ok()?;
            if read == 0 || whole > read {
                return None;
            }
            if parse(&buffer[..read], &mut found)? {
                return Some(found);
            }
        }
    }

    /// `nlmsghdr` and `inet_diag_req_v2`.
    fn request(family: u8) -> [u8; REQUEST] {
        let mut request = [0; REQUEST];
        request[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
        (request[HEADER], request[HEADER + 1]) = (family, TCP);
        request[HEADER + 4..HEADER + 8].copy_from_slice(&LISTENING.to_ne_bytes());
        request
    }

    /// Reads one piece of the answer; whether it was the last. `None`: it is no answer.
    pub(super) fn parse(mut piece: &[u8], found: &mut Vec<Socket>) -> Option<bool> {
        let half = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        while !piece.is_empty() {
            let length = word(piece, 0)? as usize;
            let (kind, flags) = (half(piece, 4)?, half(piece, 6)?);
            let message = piece.get(HEADER..length)?;
            if flags & INTERRUPTED != 0 {
                return None;
            }
            match kind {
                DONE => return Some(true),
                // `inet_diag_msg`: the port in network order, then in the end the queue, user and inode.
                BY_FAMILY => found.push(Socket {
                    port: u16::from_be_bytes(message.get(4..6)?.try_into().ok()?),
                    uid: word(message, 64)?,
                    inode: u64::from(word(message, 68)?),
                    waiting: word(message, 56)?,
                }),
                _ => return None,
            }
            piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(false)
    }
}

/// Ports with a listener now; `None` where the kernel does not tell.
pub fn ports_in_use() -> Option<Vec<u16>> {
    let ports: BTreeSet<u16> = sockets().ok()?.into_iter().map(|socket| socket.port).collect();
    Some(ports.into_iter().collect())
}

/// How many connections to a port wait to be accepted; `None` where nobody listens on it, or the kernel does not tell.
pub fn waiting(port: u16) -> Option<u32> {
    let found = sockets().ok()?;
    found.iter().filter(|socket| socket.port == port).map(|socket| socket.waiting).max()
}

/// Who listens on ports of a range. A process of another user is known by its user alone, unless this is root.
pub fn listeners(low: u16, high: u16, ours: &BTreeSet<u32>) -> Result<Vec<Listener>, AgentError> {
    let found: BTreeSet<Socket> = sockets()?.into_iter().filter(|socket| (low..=high).contains(&socket.port)).collect();
    let owners = if found.is_empty() { BTreeMap::new() } else { owners(&found) };
    let people = People::read();
    let listener = |Socket { port, uid, inode, .. }| {
        let pid = owners.get(&inode).copied();
        let command = pid.and_then(who::command);
        let ours = pid.is_some_and(|pid| ours.contains(&pid));
        Listener { port, pid, user: Some(people.name(uid)), command, ours }
    };
    let listeners: BTreeSet<Listener> = found.into_iter().map(listener).collect();
    Ok(listeners.into_iter().collect())
}

/// Processes that hold these sockets, by inode.
fn owners(wanted: &BTreeSet<Socket>) -> BTreeMap<u64, u32> {
    let wanted: BTreeSet<u64> = wanted.iter().map(|socket| socket.inode).collect();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        for descriptor in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
            let link = fs::read_link(descriptor.path()).unwrap_or_default();
            let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| wanted.contains(inode)) {
                // A child that inherited the socket comes later and says less.
                found.entry(inode).or_insert(pid);
            }
        }
        if found.len() == wanted.len() {
            break;
        }
    }
    found
}

/// The ephemeral range from its text.
pub fn port_range(text: &str) -> Option<[u16; 2]> {
    let mut words = text.split_ascii_whitespace();
    Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
}

/// The kernel's ephemeral range.
pub fn ip_local_port_range() -> Option<[u16; 2]> {
    port_range(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?)
}

/// Whether an engine could listen on this port of loopback: binding is the only honest test, since a
/// client's own socket can hold a port without any listener.
pub fn can_bind(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 71 1\n\
            \x20  1: 0100007F:A028 0100007F:4E20 08 00000000:00000000 00:00000000 00000000  1000 0 72 1\n\
            \x20  2: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000002 \
            00:00000000 00000000  0 0 73 1\n";
        let sockets = [
            Socket { port: 20000, uid: 1000, inode: 71, waiting: 0 },
            Socket { port: 22, uid: 0, inode: 73, waiting: 2 },
        ];
        assert_eq!(listed(table), sockets);
    }

    #[test]
    fn the_kernel_tells_the_same_both_ways() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = held.local_addr().expect("bound").port();
        let table = listed(&fs::read_to_string("/proc/net/tcp").expect("a table"));
        let of = |sockets: &[Socket]| sockets.iter().copied().find(|socket| socket.port == port);
        assert!(of(&table).is_some());
        // Whoever connects waits until somebody accepts.
        let _client = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        let table = listed(&fs::read_to_string("/proc/net/tcp").expect("a table"));
        assert_eq!((of(&table).map(|socket| socket.waiting), waiting(port)), (Some(1), Some(1)));
        held.accept().expect("accepted");
        assert_eq!(waiting(port), Some(0));
        // A kernel without the diagnostics has the text alone.
        let table = listed(&fs::read_to_string("/proc/net/tcp").expect("a table"));
        if let Some(told) = diag::listening(AddressFamily::INET) {
            assert_eq!(of(&told), of(&table));
        }
    }

    #[test]
    fn an_answer_that_is_none_is_not_half_believed() {
        let message = |kind: u16, flags: u16, port: u16| {
            let mut bytes = vec![0u8; 88];
            bytes[..4].copy_from_slice(&88u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
            bytes[20..22].copy_from_slice(&port.to_be_bytes());
            bytes[80..84].copy_from_slice(&1000u32.to_ne_bytes());
            bytes[84..].copy_from_slice(&71u32.to_ne_bytes());
            bytes
        };
        let parsed = |bytes: &[u8]| {
            let mut found = Vec::new();
            diag::parse(bytes, &mut found).map(|last| (found, last))
        };
        let socket = Socket { port: 20000, uid: 1000, inode: 71, waiting: 0 };
        let two = [message(20, 2, 20000), message(3, 2, 0)].concat();
        assert_eq!(parsed(&two), Some((vec![socket], true)));
        assert_eq!(parsed(&two[..88]), Some((vec![socket], false)));
        // An error, a table that changed meanwhile, cut messages, a length that goes nowhere.
        for bad in [message(2, 0, 0), message(20, 0x12, 1), two[..100].to_vec(), two[..80].to_vec(), vec![0; 16]] {
            assert_eq!(parsed(&bad), None);
        }
    }

    #[test]
    fn a_listener_is_known_by_port_process_and_user() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = held.local_addr().expect("bound").port();
        let own = std::process::id();
        let found = listeners(port, port, &BTreeSet::new()).expect("the kernel tells");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].port, found[0].pid, found[0].ours), (port, Some(own), false));
        assert!(found[0].user.is_some() && found[0].command.is_some(), "{found:?}");
        assert!(listeners(port, port, &BTreeSet::from([own])).expect("told")[0].ours);
        drop(held);
        assert!(listeners(port, port, &BTreeSet::new()).expect("told").is_empty());
    }

    #[test]
    fn a_range_is_two_numbers() {
        assert_eq!(port_range("32768\t60999\n"), Some([32768, 60999]));
        assert_eq!(port_range("32768"), None);
    }

    #[test]
    fn a_taken_port_cannot_be_bound() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = held.local_addr().expect("bound").port();
        assert!(!can_bind(port));
        assert!(ports_in_use().is_some_and(|ports| ports.contains(&port)));
        drop(held);
        assert!(can_bind(port));
    }
}
