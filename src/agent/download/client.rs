//! The HTTPS client: one request for a piece of a file, through whatever redirects lead to it.
//!
//! Redirects are followed here and not by the library, so that the token goes to the hub's own server alone, and so
//! that a content network's address is asked for once per file and not once per piece.

use std::io::Read;
use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use ureq::http::{HeaderMap, HeaderValue, Response, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Error, Proxy};

use super::address::Address;
use super::proxy;
use super::verdict::{About, Said, Trouble, of_hub, of_other, refusal, way_hint};
use crate::agent::version::version;
use crate::base::{Digest, Secret};
use crate::inventory::{HubFiles, Refusal};

/// Most redirects from the hub to the bytes.
const MAX_HOPS: usize = 10;
/// Most bytes of an answer's text that are read so that its connection can be used again.
const MAX_TEXT: u64 = 64 << 10;
/// How long a name, a connection with its handshakes, and an answer's head may take.
const CONNECT: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(60);

/// A file on the hub.
#[derive(Debug)]
pub struct Remote {
    /// Its name in the repository.
    pub name: String,
    /// Its size, which was promised.
    pub size_bytes: u64,
    /// Its digest, which was promised.
    pub sha256: Digest,
    /// Where the hub has it.
    address: Address,
    /// Where the hub sent us for it.
    found: Mutex<Option<Address>>,
}

/// An answer with bytes.
pub struct Answer {
    /// Place in the file of the first byte: that which was asked for, or 0 where the server sends the whole file
    /// whatever is asked.
    pub from: u64,
    /// Whether it sends the whole file although a piece was asked for.
    pub whole: bool,
    /// The bytes.
    pub body: Box<dyn Read + Send>,
}

/// What a way through the network needs: a proxy, or none.
struct Way {
    proxy: Option<String>,
    agent: Agent,
}

/// Asks one hub.
pub struct Client {
    from: HubFiles,
    endpoint: Address,
    token: Option<HeaderValue>,
    /// Its text, which no message may hold.
    secret: Option<Secret<String>>,
    patience: Duration,
    connections: usize,
    environment: fn(&str) -> Option<String>,
    /// The few ways that were needed so far; `None` once it was shut down.
    ways: RwLock<Option<Vec<Way>>>,
    /// Whether the node has no certificates of its own, so that those that came with the agent are used.
    bundled: RwLock<bool>,
}

impl Client {
    /// A client for `connections` at a time, which gives a connection up that is silent for longer than `patience`.
    pub fn new(
        from: &HubFiles,
        token: Option<&Secret<String>>,
        patience: Duration,
        connections: usize,
    ) -> Result<Self, Refusal> {
        let hint = "check HF_ENDPOINT";
        let wrong = |problem| refusal(None, format!("the hub's address {:?} {problem}", from.endpoint), hint);
        let endpoint = Address::parse(&from.endpoint).map_err(wrong)?;
        let header = |token: &Secret<String>| {
            // The error would quote what it was given.
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal().trim())).map_err(|_| {
                refusal(None, "the hub's token holds characters that no token has", "set HF_TOKEN anew")
            })?;
            value.set_sensitive(true);
            Ok::<_, Refusal>(value)
        };
        Ok(Self {
            from: from.clone(),
            endpoint,
            token: token.map(header).transpose()?,
            secret: token.map(|token| Secret::new(token.reveal().trim().to_owned())),
            patience,
            connections,
            environment: |name| std::env::var(name).ok(),
            ways: RwLock::new(Some(Vec::new())),
            bundled: RwLock::new(false),
        })
    }

    /// The hub, for people.
    pub fn place(&self) -> String {
        self.endpoint.place()
    }

    /// A file of the repository.
    pub fn remote(&self, name: &str, size_bytes: u64, sha256: Digest) -> Result<Remote, Refusal> {
        let HubFiles { endpoint, repository, commit } = &self.from;
        let wrong = |problem| refusal(None, format!("the address of {name:?} {problem}"), "check HF_ENDPOINT");
        let address = Address::of_file(endpoint, repository, commit, name).map_err(wrong)?;
        Ok(Remote { name: name.to_owned(), size_bytes, sha256, address, found: Mutex::new(None) })
    }

    /// Ends every connection, also those that wait for bytes. Later requests fail.
    pub fn shut_down(&self) {
        let ways = self.ways.write().unwrap_or_else(PoisonError::into_inner).take();
        for way in ways.into_iter().flatten() {
            way.agent.shutdown();
        }
    }

    /// Asks for bytes of a file, wherever the hub sends us for them.
    pub fn ask(&self, remote: &Remote, bytes: &Range<u64>) -> Result<Answer, Trouble> {
        let known = || remote.found.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = known().clone();
        if let Some(address) = kept {
            match self.walk(remote, address, bytes) {
                // Such an address is for a while: the hub gives a new one.
                Err(Trouble::Nonsense { status: Some(400..=499), .. }) => *known() = None,
                answer => return answer,
            }
        }
        self.walk(remote, remote.address.clone(), bytes)
    }

    fn walk(&self, remote: &Remote, begin: Address, bytes: &Range<u64>) -> Result<Answer, Trouble> {
        let mut at = begin.clone();
        let mut seen = vec![];
        loop {
            let response = self.get(&at, remote, bytes)?;
            let (status, ours) = (response.status().as_u16(), at.is_beside(&self.endpoint));
            if ours {
                self.check_promise(remote, response.headers())?;
            }
            match status {
                206 => {
                    let answer = piece(response, remote, bytes, &at)?;
                    self.keep(remote, &at);
                    return Ok(answer);
                }
                200 => {
                    let answer = whole(response, remote, bytes, &at)?;
                    self.keep(remote, &at);
                    return Ok(answer);
                }
                301 | 302 | 303 | 307 | 308 => {
                    let next = text_of(response.headers(), "location");
                    drain(response);
                    let nonsense = |what: String| Trouble::nonsense(status, format!("{} {what}", at.place()));
                    let next = at.join(&next).map_err(|problem| nonsense(format!("sends us to what {problem}")))?;
                    if next.is_plain() && !self.endpoint.is_plain() {
                        return Err(nonsense(format!("sends us to {}, where everybody can read along", next.place())));
                    }
                    seen.push(at);
                    if seen.contains(&next) || seen.len() > MAX_HOPS {
                        let text = format!("{} sends us in a circle for {} ({status})", self.place(), remote.name);
                        return Err(Trouble::refused(Some(status), text, way_hint(&self.place())));
                    }
                    at = next;
                }
                _ => {
                    let said = said(response.headers());
                    drain(response);
                    if !ours {
                        return Err(of_other(status, &said, &at.place(), &remote.name));
                    }
                    let (repository, commit) = (self.from.repository.as_str(), self.from.commit.as_str());
                    let (endpoint, name, login) = (&self.endpoint, remote.name.as_str(), self.token.is_some());
                    return Err(of_hub(status, &said, About { endpoint, repository, commit, name, login }));
                }
            }
        }
    }

    /// Remembers where a file's bytes are, unless the hub has them itself.
    fn keep(&self, remote: &Remote, at: &Address) {
        if !at.is_beside(&self.endpoint) {
            *remote.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(at.clone());
        }
    }

    /// The hub says the digest and the size of large files before it sends us on: another file is not fetched first.
    fn check_promise(&self, remote: &Remote, headers: &HeaderMap) -> Result<(), Trouble> {
        let etag = text_of(headers, "x-linked-etag");
        let found = Digest::parse(&format!("sha256:{}", etag.trim_start_matches("W/").trim_matches('"')));
        if let Some(found) = found.filter(|found| *found != remote.sha256) {
            let (expected, found) = (remote.sha256.to_string(), found.to_string());
            return Err(Trouble::Final(Refusal::Digest { file: remote.name.clone(), expected, found }));
        }
        Ok(())
    }

    fn get(&self, at: &Address, remote: &Remote, bytes: &Range<u64>) -> Result<Response<Body>, Trouble> {
        let place = at.place();
        loop {
            let mut request = self.agent(at)?.get(at.uri()).header(header::ACCEPT_ENCODING, "identity");
            if *bytes != (0..remote.size_bytes) {
                request = request.header(header::RANGE, format!("bytes={}-{}", bytes.start, bytes.end - 1));
            }
            if let Some(token) = self.token.as_ref().filter(|_| at.is_beside(&self.endpoint)) {
                request = request.header(header::AUTHORIZATION, token);
            }
            match request.call() {
                Ok(mut response) => {
                    self.hide_secret(response.headers_mut());
                    return Ok(response);
                }
                Err(error) if self.lacks_certificates(&error) => {}
                Err(error) => return Err(trouble(&error, &place)),
            }
        }
    }

    /// What a server says is shown to people and sent on: it may say back what it was told.
    fn hide_secret(&self, headers: &mut HeaderMap) {
        let Some(secret) = self
            .secret
            .as_ref()
            .map(|secret| secret.reveal().as_bytes()) // What is shorter is part of anything.
            .filter(|secret| secret.len() >= 8)
        else {
            return;
        };
        for value in headers.values_mut() {
            if value.as_bytes().windows(secret.len()).any(|part| part == secret) {
                *value = HeaderValue::from_static("[secret]");
            }
        }
    }

    /// Whether the node has no certificates at all; then the next attempt uses those that came with the agent. A bundle
    /// that somebody named is not passed over: it may name fewer authorities on purpose.
    fn lacks_certificates(&self, error: &Error) -> bool {
        let none = matches!(error, Error::Rustls(_)) && error.to_string().contains("No CA certificates");
        let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().any(|name| (self.environment)(name).is_some());
        let mut bundled = self.bundled.write().unwrap_or_else(PoisonError::into_inner);
        if !none || named || *bundled {
            return false;
        }
        *bundled = true;
        if let Some(ways) = self.ways.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            ways.clear();
        }
        true
    }

    fn agent(&self, at: &Address) -> Result<Agent, Trouble> {
        let proxy = proxy::choose(at.is_plain(), &at.host(), self.environment);
        let stopped = || Trouble::passing("the download was ended");
        let known = |ways: &[Way]| ways.iter().find(|way| way.proxy == proxy).map(|way| way.agent.clone());
        if let Some(agent) =
            known(self.ways.read().unwrap_or_else(PoisonError::into_inner).as_ref().ok_or_else(stopped)?)
        {
            return Ok(agent);
        }
        let bundled = *self.bundled.read().unwrap_or_else(PoisonError::into_inner);
        let mut ways = self.ways.write().unwrap_or_else(PoisonError::into_inner);
        let ways = ways.as_mut().ok_or_else(stopped)?;
        if let Some(agent) = known(ways) {
            return Ok(agent);
        }
        let agent = self.connect_by(proxy.as_deref(), bundled)?;
        ways.push(Way { proxy, agent: agent.clone() });
        Ok(agent)
    }

    fn connect_by(&self, proxy: Option<&str>, bundled: bool) -> Result<Agent, Trouble> {
        let proxy = proxy.map(Proxy::new).transpose().map_err(|_| {
            let hint = "correct HTTPS_PROXY or HTTP_PROXY where flock logs in on the node, such as http://proxy:3128";
            Trouble::refused(None, "the node's environment names a proxy that is no address", hint)
        })?;
        let roots = if bundled { RootCerts::WebPki } else { RootCerts::PlatformVerifier };
        let config = Agent::config_builder()
            .user_agent(format!("flock-agent/{}", version()))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_send_request(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(self.patience))
            .input_buffer_size(64 << 10)
            .output_buffer_size(16 << 10)
            .max_idle_connections(2 * self.connections)
            .max_idle_connections_per_host(self.connections)
            .build();
        Ok(config.new_agent())
    }
}

/// A piece of the file, which must be the one that was asked for.
fn piece(response: Response<Body>, remote: &Remote, bytes: &Range<u64>, at: &Address) -> Result<Answer, Trouble> {
    let nonsense = |what: String| Trouble::nonsense(206, format!("{} {what}", at.place()));
    let range = text_of(response.headers(), "content-range");
    let (from, to, total) = content_range(&range)
        .ok_or_else(|| nonsense(format!("sends a piece of {} and says {range:?} where it is", remote.name)))?;
    if total.is_some_and(|total| total != remote.size_bytes) {
        let size = remote.size_bytes;
        return Err(nonsense(format!(
            "has {} in another size: {range:?}, and {size} bytes were promised",
            remote.name
        )));
    }
    let (first, last) = (bytes.start, bytes.end - 1);
    if (from, to) != (bytes.start, bytes.end) {
        return Err(nonsense(format!("sends {range:?} of {} when asked for {first}-{last}", remote.name)));
    }
    if let Some(length) = response.body().content_length().filter(|length| *length != to - from) {
        let asked = to - from;
        return Err(nonsense(format!(
            "announces {length} bytes for the {asked} bytes {first}-{last} of {}",
            remote.name
        )));
    }
    plain(&response, at)?;
    Ok(Answer { from, whole: false, body: Box::new(response.into_body().into_reader()) })
}

/// The whole file, asked for or not.
fn whole(response: Response<Body>, remote: &Remote, bytes: &Range<u64>, at: &Address) -> Result<Answer, Trouble> {
    let size = remote.size_bytes;
    if let Some(length) = response.body().content_length().filter(|length| *length != size) {
        let page = response.body().mime_type().is_some_and(|kind| kind == "text/html");
        let what = if page { "a web page" } else { "something" };
        let text = format!("{} sends {what} of {length} bytes for {}, which has {size}", at.place(), remote.name);
        return Err(Trouble::nonsense(200, text));
    }
    plain(&response, at)?;
    Ok(Answer { from: 0, whole: *bytes != (0..size), body: Box::new(response.into_body().into_reader()) })
}

/// Refuses what is packed: its bytes are not the file's.
fn plain(response: &Response<Body>, at: &Address) -> Result<(), Trouble> {
    let encoding = text_of(response.headers(), "content-encoding");
    if encoding.is_empty() || encoding.eq_ignore_ascii_case("identity") {
        return Ok(());
    }
    let status = response.status().as_u16();
    Err(Trouble::nonsense(status, format!("{} sends the file packed as {encoding:?}", at.place())))
}

/// `bytes FROM-LAST/TOTAL`: from, one after the last, and the total unless it is `*`.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.trim().split_once('/')?;
    let (from, last) = range.split_once('-')?;
    let (from, last) = (from.trim().parse().ok()?, last.trim().parse::<u64>().ok()?);
    let total = if total.trim() == "*" { None } else { Some(total.trim().parse().ok()?) };
    let to = last.checked_add(1)?;
    (from < to).then_some((from, to, total))
}

fn text_of(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
}

fn said(headers: &HeaderMap) -> Said {
    Said {
        code: text_of(headers, "x-error-code"),
        message: text_of(headers, "x-error-message"),
        // A date is as good as nothing: the pauses grow by themselves.
        retry_after: text_of(headers, "retry-after").trim().parse().ok().map(Duration::from_secs),
    }
}

/// Reads what little text an answer has, so that its connection can be used again.
fn drain(response: Response<Body>) {
    let _ = std::io::copy(&mut response.into_body().into_reader().take(MAX_TEXT), &mut std::io::sink());
}

/// What a failed request means.
fn trouble(error: &Error, place: &str) -> Trouble {
    let text = error.to_string();
    let certificate = text.contains("invalid peer certificate") || text.contains("No CA certificates");
    if certificate {
        let hint = format!(
            "put the certificate of the authority that signed for {place} into the node's bundle, or name its file with \
             SSL_CERT_FILE where flock logs in on the node"
        );
        return Trouble::refused(None, format!("{place} is not trusted by the node: {text}"), hint);
    }
    match error {
        Error::Http(_) | Error::BadUri(_) | Error::InvalidProxyUrl => {
            Trouble::refused(None, format!("{place} cannot be asked: {text}"), way_hint(place))
        }
        _ => Trouble::passing(format!("{place}: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_to_the_letter() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0, 10, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5, 6, None)));
        let last = u64::MAX.to_string();
        for bad in [
            "",
            "bytes */100",
            "bytes 9-5/10",
            "items 0-9/100",
            "bytes 0-9",
            "bytes a-b/c",
            &format!("bytes 0-{last}/*"),
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
