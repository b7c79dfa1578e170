//! Round trip and throughput between two agents: one listens for a moment, the other connects.
//!
//! The key comes to both through SSH. The listener (see [`super::listener`]) answers nobody without the key, serves one
//! exchange and ends, at its deadline at the latest, and with this process in any case. What is sent is noise; it takes
//! at most two seconds and 64 MiB.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::error::AgentError;
use super::listener;
use super::sealed::{End, MAX_CONTENT, Sealed, key};
use crate::base::Secret;
use crate::inventory::{MeasuredLink, Response};

/// Longest life of a listener.
const MAX_TTL: Duration = Duration::from_secs(15);
/// How long a stranger may hold the listener before it has shown the key.
const GREETING_LIMIT: Duration = Duration::from_millis(1500);
/// How long an exchange may take in all.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);
/// How long bytes are sent for.
const SENDING_LIMIT: Duration = Duration::from_millis(800);
/// Bytes that are sent at most.
const MAX_SENT: u64 = 48 << 20;
/// Bytes that may be under way: more than a second of a distant gigabit link.
const WINDOW: u64 = 8 << 20;
/// Round trips that are timed.
const PINGS: usize = 9;
/// How long they may take in all.
const PINGS_LIMIT: Duration = Duration::from_millis(600);

/// First content of both ends.
const GREETING: &[u8] = b"flock measure 1";
const PING: u8 = b'P';

/// Opens a listener for one exchange.
pub fn listen(hex: &Secret<String>, ttl_ms: u64) -> Result<Response, AgentError> {
    listen_at(&listener::reached(), hex, ttl_ms)
}

fn listen_at(ssh_connection: &str, hex: &Secret<String>, ttl_ms: u64) -> Result<Response, AgentError> {
    let key = key(hex)?;
    let until = Instant::now() + Duration::from_millis(ttl_ms).min(MAX_TTL);
    listener::open(ssh_connection, until, move |stream| serve(stream, &key, until).is_ok_and(|known| known))
}

/// Answers one client; whether it had the key.
fn serve(stream: TcpStream, key: &Secret<[u8; 32]>, until: Instant) -> io::Result<bool> {
    let mut sealed = Sealed::new(stream, key, End::Server, until)?;
    sealed.end_at(Instant::now() + GREETING_LIMIT);
    if !sealed.receive().is_ok_and(|content| content.as_deref() == Some(GREETING)) {
        return Ok(false);
    }
    sealed.extend_to(until.min(Instant::now() + EXCHANGE_LIMIT + EXCHANGE_LIMIT));
    let mut exchange = || -> io::Result<()> {
        sealed.send(GREETING)?;
        let mut received = 0_u64;
        loop {
            match sealed.receive()? {
                None => {
                    received += MAX_CONTENT as u64;
                    if received > MAX_SENT + WINDOW {
                        return Ok(());
                    }
                    sealed.send(&received.to_be_bytes())?;
                }
                Some(content) if content.first() == Some(&PING) => sealed.send(&content)?,
                Some(_) => return Ok(()),
            }
        }
    };
    // The key is used up, however it ended.
    let _ = exchange();
    Ok(true)
}

/// Measures the way to a listener. That it cannot be reached is a result, not a failure.
pub fn connect(
    peer: &str,
    addresses: &[String],
    port: u16,
    hex: &Secret<String>,
    fallback_rtt_us: Option<u64>,
) -> Result<MeasuredLink, AgentError> {
    let key = key(hex)?;
    let mut link = MeasuredLink { peer: peer.to_owned(), ..MeasuredLink::default() };
    match listener::meet(addresses, port, |stream| exchange(stream, &key)) {
        Ok((rtt, bandwidth)) => {
            link.rtt_us = Some(rtt);
            link.bandwidth_bytes_per_s = bandwidth;
            link.measured = true;
        }
        Err(problem) => {
            link.rtt_us = fallback_rtt_us;
            link.problem = Some(problem);
        }
    }
    Ok(link)
}

/// Round trip in microseconds, and bytes per second where enough came back in time.
fn exchange(stream: TcpStream, key: &Secret<[u8; 32]>) -> io::Result<(u64, Option<u64>)> {
    let until = Instant::now() + EXCHANGE_LIMIT;
    let mut sealed = Sealed::new(stream, key, End::Client, until)?;
    sealed.send(GREETING)?;
    if sealed.receive()?.as_deref() != Some(GREETING) {
        return Err(io::Error::other("somebody else answered"));
    }
    let rtt = round_trip(&mut sealed)?;
    let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
    Ok((micros, throughput(&mut sealed, rtt, until)))
}

fn round_trip(sealed: &mut Sealed) -> io::Result<Duration> {
    let (began, mut times) = (Instant::now(), Vec::new());
    for number in 0..PINGS {
        let started = Instant::now();
        let ping = [PING, u8::try_from(number).unwrap_or(0)];
        sealed.send(&ping)?;
        if sealed.receive()?.as_deref() != Some(&ping[..]) {
            return Err(io::Error::other("another answer than was asked for"));
        }
        times.push(started.elapsed());
        if began.elapsed() > PINGS_LIMIT {
            break;
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Sends until the time or the bytes are used up, and counts what the other end says it has.
fn throughput(sealed: &mut Sealed, rtt: Duration, until: Instant) -> Option<u64> {
    let (began, mut sent, mut arrived, mut last) = (Instant::now(), 0_u64, 0_u64, Instant::now());
    let mut count = |sealed: &mut Sealed| -> Option<u64> {
        let answer = sealed.receive().ok()??;
        last = Instant::now();
        Some(u64::from_be_bytes(answer.try_into().ok()?))
    };
    let mut whole = true;
    sealed.end_at(began + SENDING_LIMIT);
    while began.elapsed() < SENDING_LIMIT && sent < MAX_SENT {
        if sent - arrived.min(sent) >= WINDOW {
            match count(sealed) {
                Some(bytes) => arrived = bytes,
                None => break,
            }
        } else if sealed.fill().is_ok() {
            sent += MAX_CONTENT as u64;
        } else {
            // Half a frame is under way: nothing more can be sent, and the answers still come.
            whole = false;
            break;
        }
    }
    sealed.extend_to(until);
    while arrived < sent {
        let Some(bytes) = count(sealed) else { break };
        arrived = bytes;
    }
    if whole {
        let _ = sealed.send(&[]);
    }
    let elapsed = last.duration_since(began);
    // The first answer is one round trip late. On a very short link that is all there is to measure.
    let moving = elapsed.saturating_sub(rtt).max(elapsed / 4).max(Duration::from_micros(1));
    let rate = u128::from(arrived) * 1_000_000 / moving.as_micros().max(1);
    (arrived > 0).then(|| u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::listener::{own_address, resolve};
    use super::*;

    fn secret(hex: &str) -> Secret<String> {
        Secret::new(hex.repeat(32))
    }

    fn listening(hex: &str, ttl_ms: u64) -> u16 {
        let answer = listen_at("127.0.0.1 50022 127.0.0.1 22", &secret(hex), ttl_ms).expect("a listener");
        let Response::Listening { port, addresses } = answer else { panic!("not listening") };
        assert_eq!(addresses, ["127.0.0.1"]);
        port
    }

    fn is_open(port: u16) -> bool {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    }

    fn until_closed(port: u16) {
        let until = Instant::now() + Duration::from_secs(20);
        while is_open(port) {
            assert!(Instant::now() < until, "the listener outlived its deadline");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn two_ends_with_one_key_measure_once() {
        let port = listening("1f", 10_000);
        let there = ["127.0.0.1".to_owned()];
        let link = connect("b", &there, port, &secret("1f"), Some(7)).expect("a result");
        assert!(link.measured && link.rtt_us.is_some_and(|us| us > 0), "{link:?}");
        assert!(link.bandwidth_bytes_per_s.is_some_and(|rate| rate > 1 << 20), "{link:?}");
        until_closed(port);
        let again = connect("b", &there, port, &secret("1f"), Some(7)).expect("a result");
        assert_eq!((again.measured, again.rtt_us, again.bandwidth_bytes_per_s), (false, Some(7), None));
        assert!(again.problem.is_some_and(|why| why.contains("127.0.0.1")));
    }

    #[test]
    fn a_stranger_learns_nothing_and_ends_nothing() {
        let port = listening("2f", 10_000);
        let there = ["127.0.0.1".to_owned()];
        let stranger = connect("b", &there, port, &secret("3f"), None).expect("a result");
        assert!(!stranger.measured && stranger.rtt_us.is_none() && stranger.problem.is_some());
        // Noise, and a client that hangs up.
        drop(TcpStream::connect(("127.0.0.1", port)).expect("open"));
        let mut noise = TcpStream::connect(("127.0.0.1", port)).expect("open");
        io::Write::write_all(&mut noise, &[0xff; 64]).expect("sent");
        drop(noise);
        assert!(connect("b", &there, port, &secret("2f"), None).expect("a result").measured);
    }

    #[test]
    fn a_listener_that_nobody_comes_to_ends_by_itself() {
        let port = listening("4f", 300);
        assert!(is_open(port));
        until_closed(port);
        assert!(listen_at("1 2 127.0.0.1 22", &Secret::new("short".to_owned()), 10).is_err());
    }

    #[test]
    fn the_address_is_the_one_that_ssh_came_in_on() {
        let own = |text: &str| own_address(text).map(|own| own.to_string());
        assert_eq!(own("10.0.0.9 50022 10.0.0.1 22").as_deref(), Some("10.0.0.1:0"));
        assert_eq!(own("2001:db8::9 50022 2001:db8::1 22").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(own("fe80::1%lo 1 fe80::2%lo 22").as_deref(), Some("[fe80::2%1]:0"));
        for without in ["", "a b c d", "fe80::1 1 fe80::2%no-such-interface 22", "1 2 localhost%lo 22"] {
            assert_eq!(own(without), None, "{without}");
            let refused = listen_at(without, &secret("5f"), 10).expect_err(without).to_string();
            assert!(refused.contains("SSH_CONNECTION"), "{refused}");
        }
        assert!(resolve("[::1]", 9).is_ok_and(|found| found.is_ipv6()));
    }
}
