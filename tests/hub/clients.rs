//! Clients that are in a hurry, and what most checks ask of their answers.

use std::time::Duration;

use flock::base::Secret;
use flock::edge::{HfHub, HubLimits, HubSettings};
use flock::ports::HubError;

use crate::support::hub::StandInHub;

/// Patience for faults that last milliseconds, not minutes.
pub fn limits() -> HubLimits {
    HubLimits {
        attempts: 3,
        first_delay: Duration::from_millis(10),
        longest_delay: Duration::from_millis(40),
        ..HubLimits::default()
    }
}

/// Settings for a stand-in.
pub fn settings(hub: &StandInHub) -> HubSettings {
    HubSettings { limits: limits(), ..HubSettings::new(hub.endpoint()) }
}

/// A client of a stand-in without a token or cache.
pub fn client(hub: &StandInHub) -> HfHub {
    HfHub::new(settings(hub)).expect("sound settings")
}

/// A client with a token.
pub fn client_as(hub: &StandInHub, token: &str) -> HfHub {
    let token = Some(Secret::new(token.to_owned()));
    HfHub::new(HubSettings { token, ..settings(hub) }).expect("sound settings")
}

/// The error of something that must fail, with a hint.
pub fn refused<T>(outcome: Result<T, HubError>) -> HubError {
    match outcome {
        Ok(_) => panic!("it worked"),
        Err(error) => {
            assert!(!error.hint().is_empty());
            error
        }
    }
}

/// Bytes that say where they are.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}
