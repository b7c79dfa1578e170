//! What was measured, kept in the state folder with its time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::AgentError;
use super::files::{Lock, private_folder, read_json, write_json};
use super::layout::Layout;
use crate::inventory::{Measured, MeasuredEndpoint, MeasuredLink};

/// Results are dropped after this long without a new one: a month.
const FORGOTTEN_MS: u64 = 30 * 24 * 3600 * 1000;
/// Most results of a kind.
const MOST: usize = 4096;

/// A result and when it was measured, Unix milliseconds.
#[derive(Debug, Serialize, Deserialize)]
struct At<T> {
    at_ms: u64,
    result: T,
}

/// The file: by peer, and by endpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    #[serde(default)]
    links: BTreeMap<String, At<MeasuredLink>>,
    #[serde(default)]
    endpoints: BTreeMap<String, At<MeasuredEndpoint>>,
}

/// Everything that is kept, with its age. A file that makes no sense is as good as none: it is measured again.
pub fn told(layout: &Layout, now_ms: u64) -> Measured {
    let kept: Kept = read_json(&layout.links()).ok().flatten().unwrap_or_default();
    Measured {
        links: kept
            .links
            .into_values()
            .map(|kept| MeasuredLink { age_ms: now_ms.saturating_sub(kept.at_ms), ..kept.result })
            .collect(),
        endpoints: kept
            .endpoints
            .into_values()
            .map(|kept| MeasuredEndpoint { age_ms: now_ms.saturating_sub(kept.at_ms), ..kept.result })
            .collect(),
    }
}

/// Keeps a link's result.
pub fn keep_link(layout: &Layout, link: &MeasuredLink, now_ms: u64) -> Result<(), AgentError> {
    change(layout, now_ms, |kept| {
        kept.links.insert(link.peer.clone(), At { at_ms: now_ms, result: link.clone() });
    })
}

/// Keeps results of endpoints.
pub fn keep_endpoints(layout: &Layout, found: &[MeasuredEndpoint], now_ms: u64) -> Result<(), AgentError> {
    change(layout, now_ms, |kept| {
        for one in found {
            kept.endpoints.insert(one.endpoint.clone(), At { at_ms: now_ms, result: one.clone() });
        }
    })
}

fn change(layout: &Layout, now_ms: u64, add: impl FnOnce(&mut Kept)) -> Result<(), AgentError> {
    private_folder(&layout.state)?;
    let _lock = Lock::wait(&layout.state_lock())?;
    let mut kept: Kept = read_json(&layout.links()).ok().flatten().unwrap_or_default();
    // A clock that was set back makes a result young for ever: from the future is as good as too old.
    let fresh = |at_ms: u64| at_ms <= now_ms && now_ms - at_ms < FORGOTTEN_MS;
    kept.links.retain(|_, one| fresh(one.at_ms));
    kept.endpoints.retain(|_, one| fresh(one.at_ms));
    add(&mut kept);
    while kept.links.len() > MOST {
        kept.links.pop_first();
    }
    while kept.endpoints.len() > MOST {
        kept.endpoints.pop_first();
    }
    write_json(&layout.links(), &kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_an_age_and_the_newest_counts() {
        let home = tempfile::tempdir().expect("a home");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        assert_eq!(told(&layout, 5), Measured::default());
        let link = |rtt| MeasuredLink { peer: "b".into(), rtt_us: Some(rtt), measured: true, ..Default::default() };
        keep_link(&layout, &link(10), 1_000).expect("kept");
        keep_link(&layout, &link(20), 3_000).expect("kept");
        let endpoint = MeasuredEndpoint { endpoint: "api.example:443".into(), rtt_us: Some(5), ..Default::default() };
        keep_endpoints(&layout, &[endpoint], 3_500).expect("kept");
        let found = told(&layout, 4_000);
        assert_eq!((found.links.len(), found.links[0].rtt_us, found.links[0].age_ms), (1, Some(20), 1_000));
        assert_eq!((found.endpoints[0].rtt_us, found.endpoints[0].age_ms), (Some(5), 500));
        let other = MeasuredLink { peer: "c".into(), ..Default::default() };
        keep_link(&layout, &other, 3_600 + FORGOTTEN_MS).expect("kept");
        assert_eq!(told(&layout, 4_000 + FORGOTTEN_MS).links.len(), 1, "a month later the old one is gone");
        std::fs::write(layout.links(), "{").expect("written");
        assert_eq!(told(&layout, 5), Measured::default());
        keep_link(&layout, &other, 9).expect("a broken file is replaced");
    }
}
