//! The one kind of listener that the agent opens towards other nodes: for a moment, for one peer that has the key, and
//! on the one address that SSH came in on. A node that was not reached over SSH has no such address and does not listen.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::error::AgentError;
use crate::inventory::{Refusal, Response};

/// How long one address may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_millis(1500);
/// Most addresses that are tried.
const MAX_ADDRESSES: usize = 4;

/// How this process was reached, as sshd says it.
pub fn reached() -> String {
    std::env::var("SSH_CONNECTION").unwrap_or_default()
}

/// Listens until `until` and hands each connection to `serve`, which says whether the peer had the key: then nobody
/// else is served.
pub fn open(
    reached: &str,
    until: Instant,
    mut serve: impl FnMut(TcpStream) -> bool + Send + 'static,
) -> Result<Response, AgentError> {
    let own = own_address(reached).ok_or_else(|| Refusal::Unreached {
        text: "sshd does not say which address it was reached by (SSH_CONNECTION), and all addresses are not opened"
            .to_owned(),
    })?;
    // What only holds on one link means nothing to others; they have the config's address.
    let addresses = if matches!(own, SocketAddr::V6(own) if own.scope_id() != 0) { None } else { Some(own.ip()) };
    let fail = |error: io::Error| AgentError::Other(format!("listening for another node: {error}"));
    let listener = TcpListener::bind(own).map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.port();
    listener.set_nonblocking(true).map_err(fail)?;
    thread::spawn(move || {
        while Instant::now() < until {
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(false).is_ok() && serve(stream) {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
                Err(_) => return,
            }
        }
    });
    Ok(Response::Listening { port, addresses: addresses.iter().map(ToString::to_string).collect() })
}

/// The address that this SSH connection came in on, with a free port: the one that others reach this node by, and no
/// other is opened. One of a single link (`fe80::1%eth0`) is looked up by its interface's name.
pub fn own_address(ssh_connection: &str) -> Option<SocketAddr> {
    let text = ssh_connection.split(' ').nth(2)?;
    let address: IpAddr = text.split('%').next()?.parse().ok()?;
    if !text.contains('%') {
        return Some(SocketAddr::new(address, 0));
    }
    (text, 0).to_socket_addrs().ok()?.next().filter(|found| found.ip() == address)
}

/// Tries the addresses in order until a peer with the key is met; otherwise what is wrong with each.
pub fn meet<T>(
    addresses: &[String],
    port: u16,
    mut greet: impl FnMut(TcpStream) -> io::Result<T>,
) -> Result<T, String> {
    let mut problems = Vec::new();
    for address in addresses.iter().take(MAX_ADDRESSES) {
        let connected = resolve(address, port).and_then(|found| TcpStream::connect_timeout(&found, CONNECT_LIMIT));
        match connected.and_then(&mut greet) {
            Ok(met) => return Ok(met),
            Err(error) => problems.push(format!("{address}: {}", plain(&error))),
        }
    }
    Err(if problems.is_empty() { "it has no address that others reach it by".to_owned() } else { problems.join("; ") })
}

/// What a failed connection means, without the port that was only there for this.
pub fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer (a firewall between the nodes?)".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused (a firewall, or another machine)".to_owned(),
        _ => error.to_string(),
    }
}

/// An address from a config or from a node.
pub fn resolve(address: &str, port: u16) -> io::Result<SocketAddr> {
    let address = address.trim_start_matches('[').trim_end_matches(']');
    (address, port).to_socket_addrs()?.next().ok_or_else(|| io::Error::other("the name has no address"))
}
