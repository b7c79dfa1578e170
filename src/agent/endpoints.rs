//! The time it takes this node to connect to a provider.

use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::error::AgentError;
use crate::inventory::MeasuredEndpoint;

/// Connections that are timed.
const TIMES: usize = 3;
/// How long one may take.
const LIMIT: Duration = Duration::from_secs(3);
/// Most endpoints of one request.
const MOST: usize = 64;

/// Connects three times to each and hangs up; nothing is sent. The name is looked up before the clock runs.
pub fn measure(endpoints: Vec<String>) -> Result<Vec<MeasuredEndpoint>, AgentError> {
    if endpoints.len() > MOST {
        return Err(AgentError::Other(format!("{} endpoints are more than {MOST}", endpoints.len())));
    }
    let waiting: Vec<_> = endpoints.into_iter().map(|endpoint| thread::spawn(move || one(endpoint))).collect();
    let failed = |_| AgentError::Other("measuring an endpoint failed".into());
    waiting.into_iter().map(|one| one.join().map_err(failed)).collect()
}

fn one(endpoint: String) -> MeasuredEndpoint {
    match connect_time(&endpoint) {
        Ok(rtt) => MeasuredEndpoint { endpoint, rtt_us: Some(rtt), ..MeasuredEndpoint::default() },
        Err(problem) => MeasuredEndpoint { endpoint, problem: Some(problem), ..MeasuredEndpoint::default() },
    }
}

fn connect_time(endpoint: &str) -> Result<u64, String> {
    let mut found = endpoint.to_socket_addrs().map_err(|error| format!("its name is not found here: {error}"))?;
    let address = found.next().ok_or("its name has no address here")?;
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let started = Instant::now();
        TcpStream::connect_timeout(&address, LIMIT).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => format!("no answer within {} s", LIMIT.as_secs()),
            _ => error.to_string(),
        })?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(u64::try_from(times[TIMES / 2].as_micros()).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_listens_has_a_time_and_what_does_not_a_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let open = listener.local_addr().expect("bound").to_string();
        let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
        let found = measure(vec![open.clone(), closed, "no.such.name.invalid:443".into()]).expect("results");
        assert!(found[0].endpoint == open && found[0].rtt_us.is_some() && found[0].problem.is_none());
        assert!(found[1].rtt_us.is_none() && found[1].problem.as_ref().is_some_and(|why| why.contains("refused")));
        assert!(found[2].problem.as_ref().is_some_and(|why| why.contains("name")), "{found:?}");
        assert!(measure(vec![String::new(); 65]).is_err());
    }
}
