//! What every request obeys: how many at once, deadlines, retries, and whose token goes where.
//!
//! The token is a header of each request to the endpoint, never of the client: reqwest drops it when a redirect leads
//! to another host, port or scheme, and an address that an answer names is asked on the endpoint's own host.

use std::time::Duration;

use hf_hub::HFClient;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};

use super::errors::{About, Failure, Interpreter, Refusal, retry_after, shortened};
use super::settings::{HubLimits, HubProxy, HubSettings};
use crate::ports::HubError;

/// Redirects of one request: a renamed repository, another spelling, and the content network are three.
const MAX_REDIRECTS: usize = 10;
/// Most of a refusal's body that is read.
const MAX_REFUSAL_BYTES: usize = 16 << 10;
/// Why a redirect is not followed.
pub(super) const NO_TLS: &str = "it redirects to where everybody can read along";
/// Largest JSON answer: a page of 1,000 entries has some 300 KiB.
const MAX_JSON_BYTES: usize = 32 << 20;

/// Asks the hub.
pub(super) struct Requests {
    http: Client,
    /// The same client inside hf-hub.
    pub(super) hf: HFClient,
    address: Url,
    authorization: Option<HeaderValue>,
    pub(super) interpreter: Interpreter,
    pub(super) limits: HubLimits,
    offline: bool,
    slots: Semaphore,
}

impl Requests {
    pub(super) fn new(settings: &HubSettings) -> Result<Self, HubError> {
        let address = settings.address()?;
        let authorization = settings.authorization()?;
        let endpoint = address.as_str().trim_end_matches('/').to_owned();
        let interpreter = Interpreter { endpoint: endpoint.clone(), token: settings.token.clone() };

        // SSH brings ring, hf-hub brings aws-lc; without a choice each library takes its own. Someone else's earlier
        // choice is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = client(settings, &interpreter)?;
        let hf = HFClient::builder()
            .client(http.clone())
            .endpoint(endpoint)
            // hf-hub looks for a token of its own where it is given none; what no header can hold is none.
            .token(settings.token.as_ref().map_or("\n", |token| token.reveal()))
            .cache_enabled(false)
            .retry_max_attempts(0)
            .build()
            .map_err(|error| interpreter.unreachable(shortened(&error.to_string())))?;
        Ok(Self {
            http,
            hf,
            address,
            authorization,
            interpreter,
            limits: settings.limits,
            offline: settings.offline,
            slots: Semaphore::new(settings.limits.at_once.max(1)),
        })
    }

    /// An address at the endpoint. Each part is one segment of its path, whatever it holds.
    pub(super) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.address.clone();
        url.path_segments_mut().expect("an address with a host has a path").pop_if_empty().extend(parts);
        url
    }

    /// The tries of one request.
    pub(super) fn patience(&self) -> Patience {
        self.patience_for(Duration::ZERO)
    }

    /// The tries of one request that takes so much longer than one for JSON.
    pub(super) fn patience_for(&self, longer: Duration) -> Patience {
        Patience {
            left: self.limits.attempts.max(1) - 1,
            delay: self.limits.first_delay,
            until: Instant::now() + self.limits.total + longer,
            limits: self.limits,
        }
    }

    /// Waits until it is this request's turn.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>, Failure> {
        if self.offline {
            return Err(Failure::Final(self.interpreter.unreachable("HF_HUB_OFFLINE forbids to ask it")));
        }
        Ok(self.slots.acquire().await.expect("the semaphore is never closed"))
    }

    /// One GET, with the header `Range` where one is given. Success is an answer, and to a range also 416;
    /// all else is a failure.
    pub(super) async fn get(&self, url: &Url, range: Option<&str>, about: About<'_>) -> Result<Response, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(range) = range {
            let range = HeaderValue::from_str(range).expect("digits and a dash");
            headers.insert(RANGE, range);
            // Ranges count the file's bytes, not those of a compressed form.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let sent = self.http.get(url.clone()).headers(headers).send();
        let response = sent.await.map_err(|error| self.interpreter.transport(error))?;
        let status = response.status();
        tracing::debug!(path = url.path(), range, status = status.as_u16(), "asked the hub");
        if status.is_success() || (range.is_some() && status == StatusCode::RANGE_NOT_SATISFIABLE) {
            return Ok(response);
        }
        let refusal = self.refusal(response).await;
        Err(self.interpreter.refusal(&refusal, about))
    }

    /// All pages of a list.
    ///
    /// hf-hub has this, but it sends the token wherever the `Link` of an answer leads, which behind a mirror is the
    /// real hub; it takes a relative `Link` or an empty page for the end; and it knows no bound.
    pub(super) async fn pages<T: DeserializeOwned>(
        &self,
        first: Url,
        most: usize,
        about: About<'_>,
    ) -> Result<Vec<T>, HubError> {
        let (mut items, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
        let mut next = Some(first);
        while let Some(url) = next {
            if !seen.insert(url.clone()) {
                return Err(self.interpreter.nonsense("the pages of a list lead in a circle"));
            }
            let mut patience = self.patience();
            let (page, link) = loop {
                match self.page::<T>(&url, about).await {
                    Ok(page) => break page,
                    Err(failure) => patience.again(failure).await?,
                }
            };
            items.extend(page);
            if items.len() > most {
                return Err(self.interpreter.nonsense(format!("a list has more than {most} entries")));
            }
            next = link;
        }
        Ok(items)
    }

    async fn page<T: DeserializeOwned>(&self, url: &Url, about: About<'_>) -> Result<(Vec<T>, Option<Url>), Failure> {
        let _turn = self.turn().await?;
        let work = async {
            let response = self.get(url, None, about).await?;
            let link = self.next_page(url, response.headers());
            let body = self.body(response, MAX_JSON_BYTES).await?;
            let page = serde_json::from_slice(&body).map_err(|error| {
                let what = if body.trim_ascii_start().starts_with(b"<") { "HTML" } else { "something else" };
                let reason = format!("JSON was asked for and {what} came ({})", shortened(&error.to_string()));
                Failure::Final(self.interpreter.nonsense(reason))
            })?;
            Ok((page, link))
        };
        self.within(self.limits.request, work).await
    }

    /// Bounds one try.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout(limit, work).await.unwrap_or_else(|_| {
            let reason = format!("no whole answer came within {} s", limit.as_secs_f64());
            Err(Failure::Again { error: self.interpreter.unreachable(reason), after: None })
        })
    }

    /// The `rel="next"` of an answer, on the endpoint's own host: a mirror may pass on what the real hub wrote.
    fn next_page(&self, current: &Url, headers: &HeaderMap) -> Option<Url> {
        let link = headers.get("link")?.to_str().ok()?;
        let next = link.split(',').find(|part| part.contains("rel=\"next\"") || part.contains("rel=next"))?;
        let target = current.join(next.split_once('<')?.1.split_once('>')?.0).ok()?;
        let mut url = current.clone();
        if target.origin() == current.origin() {
            url.set_path(target.path());
        }
        url.set_query(target.query());
        Some(url)
    }

    /// A whole body of at most `most` bytes.
    async fn body(&self, mut response: Response, most: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.interpreter.transport(error))? {
            if body.len() + chunk.len() > most {
                return Err(Failure::Final(self.interpreter.nonsense(format!("an answer has more than {most} bytes"))));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    async fn refusal(&self, mut response: Response) -> Refusal {
        let text = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let mut refusal = Refusal {
            status: response.status().as_u16(),
            code: text("x-error-code"),
            message: text("x-error-message"),
            retry_after: retry_after(response.headers()),
            at_home: response.url().origin() == self.address.origin(),
        };
        if refusal.message.is_none() {
            let mut body = Vec::new();
            while body.len() < MAX_REFUSAL_BYTES {
                match response.chunk().await {
                    Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                    Ok(None) | Err(_) => break,
                }
            }
            let error = serde_json::from_slice::<serde_json::Value>(&body).ok();
            refusal.message = error.and_then(|error| Some(error.get("error")?.as_str()?.to_owned()));
        }
        refusal
    }
}

fn client(settings: &HubSettings, interpreter: &Interpreter) -> Result<Client, HubError> {
    let setting = |name: &str, reason: String| HubError::Setting { name: name.to_owned(), reason };
    let mut builder = Client::builder()
        .user_agent(concat!("flock/", env!("CARGO_PKG_VERSION")))
        .redirect(redirects())
        .referer(false)
        .connect_timeout(settings.limits.connect)
        .read_timeout(settings.limits.stall);
    if let Some(path) = &settings.certificates {
        let name = path.display().to_string();
        let pem = std::fs::read(path).map_err(|error| setting(&name, format!("cannot be read: {error}")))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem)
            .map_err(|error| setting(&name, format!("holds no certificates: {}", shortened(&error.to_string()))))?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder = match &settings.proxy {
        HubProxy::Environment => builder,
        HubProxy::Direct => builder.no_proxy(),
        HubProxy::Address(address) => {
            // The address may hold a password.
            let proxy = reqwest::Proxy::all(address.as_str())
                .map_err(|_| setting("the proxy", "is no address such as http://proxy:3128".to_owned()))?;
            builder.proxy(proxy)
        }
    };
    builder.build().map_err(|error| match interpreter.transport(error) {
        Failure::Final(error) | Failure::Again { error, .. } => error,
    })
}

/// As reqwest follows them, but never from `https` to where everybody can read along: the node's client does not either.
fn redirects() -> reqwest::redirect::Policy {
    let limited = reqwest::redirect::Policy::limited(MAX_REDIRECTS);
    reqwest::redirect::Policy::custom(move |attempt| {
        let from_tls = attempt.previous().last().is_some_and(|from| from.scheme() == "https");
        if from_tls && attempt.url().scheme() != "https" { attempt.error(NO_TLS) } else { limited.redirect(attempt) }
    })
}

/// The tries of one request that are left.
pub(super) struct Patience {
    left: u32,
    delay: Duration,
    until: Instant,
    limits: HubLimits,
}

impl Patience {
    /// Waits for the next try, or gives the failure back as what it is. The waits are 1, 2, 4, … times the first,
    /// without chance in them: a handful of requests needs no spreading, and a run can be told from its log.
    pub(super) async fn again(&mut self, failure: Failure) -> Result<(), HubError> {
        let (error, after) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Again { error, after } => (error, after),
        };
        let wait = after.unwrap_or(Duration::ZERO).max(self.delay);
        let too_long = after.is_some_and(|after| after > self.limits.longest_retry_after);
        if self.left == 0 || too_long || Instant::now() + wait > self.until {
            return Err(error);
        }
        tracing::debug!(%error, wait_ms = wait.as_millis(), left = self.left, "asking the hub again");
        self.left -= 1;
        self.delay = (self.delay * 2).min(self.limits.longest_delay);
        sleep(wait).await;
        Ok(())
    }

    /// Something was gained since the last try: all tries are there again, the time is not.
    pub(super) fn gained(&mut self) {
        self.left = self.limits.attempts.max(1) - 1;
        self.delay = self.limits.first_delay;
    }

    /// As [`Self::gained`], for a file that takes as long as it takes: the time begins anew.
    pub(super) fn gained_time(&mut self) {
        self.gained();
        self.until = Instant::now() + self.limits.total;
    }
}
