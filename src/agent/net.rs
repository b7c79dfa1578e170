//! TCP ports of this node.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};

/// Ports with a listener, from the text of `/proc/net/tcp` or `/proc/net/tcp6`.
pub fn listening(table: &str) -> BTreeSet<u16> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            if *fields.get(3)? != "0A" {
                return None;
            }
            u16::from_str_radix(fields.get(1)?.rsplit_once(':')?.1, 16).ok()
        })
        .collect()
}

/// Ports with a listener now; `None` where the kernel does not tell.
pub fn ports_in_use() -> Option<Vec<u16>> {
    let mut ports = listening(&fs::read_to_string("/proc/net/tcp").ok()?);
    if let Ok(table) = fs::read_to_string("/proc/net/tcp6") {
        ports.extend(listening(&table));
    }
    Some(ports.into_iter().collect())
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
            \x20  0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 1 1\n\
            \x20  1: 0100007F:A028 0100007F:4E20 08 00000000:00000000 00:00000000 00000000  1000 0 1 1\n\
            \x20  2: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0 0\n";
        assert_eq!(listening(table), BTreeSet::from([22, 20000]));
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
