//! Ports of this machine.

use std::sync::atomic::{AtomicU32, Ordering};

/// Where they begin and how many they are: below those that the kernel gives to outgoing connections and to whoever
/// asks for any port, so that no other test is given one between the look and its use.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// One of loopback that nobody has, and that this process did not give away before.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin far from each other.
    let begin = std::process::id().wrapping_mul(2_654_435_761) >> 8;
    for _ in 0..COUNT {
        let port = FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(port).expect("below 30,000");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}
