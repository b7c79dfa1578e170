//! From a written value to a typed one, with what to write instead.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::syntax::{Entry, Value};
use super::{ids, names};
use crate::base::{Bytes, ParseWordError, Spanned, UnitError, is_obeyed, parse_bytes, parse_duration};

/// A value that is none of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub id: &'static str,
    pub message: String,
    pub hint: String,
}

impl Wrong {
    pub fn new(id: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { id, message: message.into(), hint: hint.into() }
    }

    fn kind(expected: &str, found: &Value, hint: impl Into<String>) -> Self {
        Self::new(ids::WRONG_TYPE, format!("expected {expected}, found {}", found.describe()), hint)
    }
}

type Result<T> = std::result::Result<T, Wrong>;

impl Entry {
    /// The value as a type; `None` where the checker has already reported it.
    pub(super) fn get<T>(&self, read: impl FnOnce(&Value) -> Result<T>) -> Option<Spanned<T>> {
        let value = read(&self.value.value).ok()?;
        Some(Spanned::new(value, self.at().clone()))
    }

    /// A whole number; its bounds were checked against the table.
    pub(super) fn whole<T: TryFrom<u64>>(&self) -> Option<Spanned<T>> {
        let number = self.get(|value| whole(value, 0, u64::MAX))?;
        Some(Spanned::new(T::try_from(number.value).ok()?, number.place))
    }

    /// A word that parses.
    pub(super) fn parsed<T: FromStr<Err = ParseWordError>>(&self) -> Option<Spanned<T>> {
        self.get(parsed)
    }
}

/// Money in millionths of the cluster's currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Money(pub u64);

/// A share in hundredths of a percent: 2500 is 25 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Share(pub u32);

/// Requests per time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequestRate {
    /// How many.
    pub requests: u32,
    /// In which time.
    pub per: Duration,
}

/// A calendar date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Date {
    /// Year.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day, 1 to 31.
    pub day: u8,
}

/// A time of day in minutes since midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TimeOfDay(pub u16);

/// Days of the week, Monday is 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Days(pub BTreeSet<u8>);

/// Paths, arguments and environments end at a NUL, and what else a terminal obeys would come back in plans and logs.
fn obeyed(text: &str) -> Option<Wrong> {
    let message = match text.chars().find(|c| is_obeyed(*c))? {
        '\0' => "a NUL character in a text".to_owned(),
        c if c.is_control() => format!("the control character U+{:04X} in a text", u32::from(c)),
        c => format!("U+{:04X}, which turns the direction of a line, in a text", u32::from(c)),
    };
    Some(Wrong::new(ids::OUT_OF_RANGE, message, "remove it; a text holds line ends, tabs and what can be seen"))
}

pub(super) fn text(value: &Value) -> Result<String> {
    match value {
        Value::Text { text, .. } if text.is_empty() => {
            Err(Wrong::new(ids::OUT_OF_RANGE, "the text is empty", "write a text"))
        }
        Value::Text { text, .. } => obeyed(text).map_or_else(|| Ok(text.clone()), Err),
        Value::Integer(number) => Err(Wrong::kind("a text", value, format!("write \"{number}\" in quotes"))),
        Value::Float(number) => Err(Wrong::kind("a text", value, format!("write \"{number}\" in quotes"))),
        other => Err(Wrong::kind("a text", other, "write a text in quotes")),
    }
}

pub(super) fn name(value: &Value) -> Result<String> {
    let text = match value {
        Value::Text { text, .. } => text.clone(),
        other => text(other)?,
    };
    match names::problem(&text) {
        Some(problem) => Err(Wrong::new(ids::BAD_NAME, problem, names::NAME_RULE)),
        None => Ok(text),
    }
}

pub(super) fn whole(value: &Value, min: u64, max: u64) -> Result<u64> {
    let expected = if max >= u64::from(u32::MAX) {
        format!("a whole number of at least {min}")
    } else {
        format!("a whole number from {min} to {max}")
    };
    match value {
        Value::Integer(number) => match u64::try_from(*number) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(Wrong::new(ids::OUT_OF_RANGE, format!("{number} is out of range"), format!("write {expected}"))),
        },
        Value::Text { text, .. } if text.parse::<u64>().is_ok() => {
            Err(Wrong::kind("a number", value, format!("write {text} without quotes")))
        }
        Value::Text { text, .. } if super::syntax::thousands(text).is_some() => {
            let count = super::syntax::thousands(text).unwrap_or_default();
            Err(Wrong::kind("a whole number", value, format!("write {count} without quotes")))
        }
        other => Err(Wrong::kind("a whole number", other, format!("write {expected}"))),
    }
}

pub(super) fn number(value: &Value, min: f64, max: f64) -> Result<f64> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        other => {
            return Err(Wrong::kind("a number", other, format!("write a number from {min} to {max}, without quotes")));
        }
    };
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(Wrong::new(
            ids::OUT_OF_RANGE,
            format!("{number} is out of range"),
            format!("write a number from {min} to {max}"),
        ))
    }
}

pub(super) fn boolean(value: &Value) -> Result<bool> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Text { text, .. } if matches!(text.to_ascii_lowercase().as_str(), "true" | "yes" | "on") => {
            Err(Wrong::kind("#true or #false", value, "write #true"))
        }
        Value::Text { text, .. } if matches!(text.to_ascii_lowercase().as_str(), "false" | "no" | "off") => {
            Err(Wrong::kind("#true or #false", value, "write #false"))
        }
        other => Err(Wrong::kind("#true or #false", other, "write #true or #false")),
    }
}

pub(super) fn bytes(value: &Value) -> Result<Bytes> {
    match value {
        Value::Text { text, .. } => parse_bytes(text)
            .map_err(|error| unit(&error, text, "bytes", "24GiB", "GiB", "KiB MiB GiB TiB or KB MB GB TB")),
        Value::Integer(number) if *number >= 1 << 20 => Err(Wrong::new(
            ids::MISSING_UNIT,
            "bytes without a unit",
            format!("write \"{number}B\", or a larger unit such as \"24GiB\""),
        )),
        Value::Integer(number) => {
            Err(Wrong::new(ids::MISSING_UNIT, "bytes without a unit", format!("write \"{number}GiB\" (or MiB, GB, …)")))
        }
        Value::Float(number) => {
            Err(Wrong::new(ids::MISSING_UNIT, "bytes without a unit", format!("write \"{number}GiB\" (or MiB, GB, …)")))
        }
        other => Err(Wrong::kind("bytes with their unit", other, "write \"24GiB\"")),
    }
}

fn unit(error: &UnitError, text: &str, what: &str, example: &str, guess: &str, units: &str) -> Wrong {
    match error {
        UnitError::MissingUnit => {
            Wrong::new(ids::MISSING_UNIT, format!("{what} without a unit"), format!("write \"{}{guess}\"", text.trim()))
        }
        UnitError::UnknownUnit(found) => {
            let near = units.split(' ').find(|known| known.eq_ignore_ascii_case(found));
            let hint = match near {
                Some(near) => format!("did you mean `{near}`? Units are {units}"),
                None => format!("units are {units}"),
            };
            Wrong::new(ids::MISSING_UNIT, error.to_string(), hint)
        }
        UnitError::NotANumber => {
            Wrong::new(ids::WRONG_TYPE, format!("{text:?} is no amount of {what}"), format!("write \"{example}\""))
        }
        UnitError::TooLarge => Wrong::new(
            ids::OUT_OF_RANGE,
            format!("{text:?} is too large"),
            format!("write an amount such as \"{example}\""),
        ),
    }
}

pub(super) fn duration(value: &Value) -> Result<Duration> {
    match value {
        Value::Text { text, .. } => {
            parse_duration(text).map_err(|error| unit(&error, text, "time", "5s", "s", "us ms s m h d"))
        }
        Value::Integer(number) => {
            Err(Wrong::new(ids::MISSING_UNIT, "a time without a unit", format!("write \"{number}s\" (or ms, m, h, d)")))
        }
        Value::Float(number) => {
            Err(Wrong::new(ids::MISSING_UNIT, "a time without a unit", format!("write \"{number}s\" (or ms, m, h, d)")))
        }
        other => Err(Wrong::kind("a time with its unit", other, "write \"5s\"")),
    }
}

/// Refuses nothing where nothing has no meaning.
pub(super) fn some(is_some: bool, value: &Value, example: &str) -> Result<()> {
    let hint = || format!("write more than that, such as \"{example}\", or leave it out");
    let wrong = || Wrong::new(ids::OUT_OF_RANGE, format!("{} is nothing", value.describe()), hint());
    if is_some { Ok(()) } else { Err(wrong()) }
}

pub(super) fn byte_rate(value: &Value) -> Result<Bytes> {
    let Value::Text { text, .. } = value else {
        return Err(match value {
            Value::Integer(_) | Value::Float(_) => {
                Wrong::new(ids::MISSING_UNIT, "a rate without a unit", "write \"10MB/s\"")
            }
            other => Wrong::kind("bytes per second", other, "write \"10MB/s\""),
        });
    };
    match text.strip_suffix("/s") {
        Some(amount) => parse_bytes(amount)
            .map_err(|error| unit(&error, amount, "bytes", "10MB/s", "MB/s", "KiB MiB GiB TiB or KB MB GB TB"))
            .and_then(|rate| {
                let hint = "write a rate above zero, such as \"10MB/s\", or leave it out: then nothing is held back";
                let stops = || Wrong::new(ids::OUT_OF_RANGE, "a rate of nothing, at which no transfer ever ends", hint);
                if rate.0 > 0 { Ok(rate) } else { Err(stops()) }
            }),
        None => Err(Wrong::new(ids::MISSING_UNIT, "a rate without `/s`", format!("write \"{text}/s\""))),
    }
}

/// A decimal number as an integer of `10^-digits`.
fn decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let valid = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !valid(whole) || !valid(fraction) || fraction.len() > digits || text.ends_with('.') {
        return None;
    }
    format!("{whole}{fraction:0<digits$}").parse().ok().filter(|number| *number <= i64::MAX as u64)
}

pub(super) fn percent(value: &Value) -> Result<Share> {
    let Value::Text { text, .. } = value else {
        return Err(match value {
            Value::Integer(number) => {
                Wrong::new(ids::MISSING_UNIT, "a share without `%`", format!("write \"{number}%\""))
            }
            Value::Float(number) => {
                Wrong::new(ids::MISSING_UNIT, "a share without `%`", format!("write \"{number}%\""))
            }
            other => Wrong::kind("a share", other, "write \"25%\""),
        });
    };
    let Some(amount) = text.strip_suffix('%') else {
        return Err(Wrong::new(ids::MISSING_UNIT, "a share without `%`", format!("write \"{text}%\"")));
    };
    match decimal(amount.trim(), 2) {
        Some(share) if share <= 10_000 => Ok(Share(share as u32)),
        Some(_) => {
            Err(Wrong::new(ids::OUT_OF_RANGE, format!("{text} is more than everything"), "write at most \"100%\""))
        }
        None => Err(Wrong::new(ids::WRONG_TYPE, format!("{text:?} is no share"), "write \"25%\"")),
    }
}

pub(super) fn money(value: &Value) -> Result<Money> {
    match value {
        Value::Text { text, .. } => decimal(text.trim(), 6).map(Money).ok_or_else(|| {
            Wrong::new(
                ids::WRONG_TYPE,
                format!("{text:?} is no amount of money"),
                "write \"5.00\"; the currency is the cluster's",
            )
        }),
        other => Err(Wrong::kind("an amount", other, "write \"5.00\" in quotes; the currency is the cluster's")),
    }
}

fn price(value: &Value, suffix: &str, example: &str) -> Result<Money> {
    match value {
        Value::Text { text, .. } => match text.strip_suffix(suffix) {
            Some(amount) => decimal(amount.trim(), 6).map(Money).ok_or_else(|| {
                Wrong::new(ids::WRONG_TYPE, format!("{text:?} is no price"), format!("write \"{example}\""))
            }),
            None => Err(Wrong::new(
                ids::MISSING_UNIT,
                format!("a price without `{suffix}`"),
                format!("write \"{example}\""),
            )),
        },
        Value::Integer(_) | Value::Float(_) => {
            Err(Wrong::new(ids::MISSING_UNIT, "a price without a unit", format!("write \"{example}\"")))
        }
        other => Err(Wrong::kind("a price", other, format!("write \"{example}\""))),
    }
}

pub(super) fn hourly_price(value: &Value) -> Result<Money> {
    price(value, "/h", "1.20/h")
}

pub(super) fn token_price(value: &Value) -> Result<Money> {
    price(value, "/Mtok", "3.00/Mtok")
}

pub(super) fn request_rate(value: &Value) -> Result<RequestRate> {
    let wrong = || {
        Wrong::new(
            ids::MISSING_UNIT,
            format!("expected requests per time, found {}", value.describe()),
            "write \"60/m\": a number and /s, /m or /h",
        )
    };
    let Value::Text { text, .. } = value else { return Err(wrong()) };
    let (count, per) = text.split_once('/').ok_or_else(wrong)?;
    let per = match per {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let requests = count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
    Ok(RequestRate { requests, per: Duration::from_secs(per) })
}

pub(super) fn date(value: &Value) -> Result<Date> {
    let wrong =
        || Wrong::new(ids::WRONG_TYPE, format!("expected a date, found {}", value.describe()), "write \"2027-01-31\"");
    let Value::Text { text, .. } = value else { return Err(wrong()) };
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return Err(wrong()) };
    if (year.len(), month.len(), day.len()) != (4, 2, 2) {
        return Err(wrong());
    }
    let read = |part: &str| part.parse::<u16>().ok().filter(|_| part.bytes().all(|b| b.is_ascii_digit()));
    let (Some(year), Some(month), Some(day)) = (read(year), read(month), read(day)) else { return Err(wrong()) };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return Err(wrong()),
    };
    if (1..=last).contains(&day) { Ok(Date { year, month: month as u8, day: day as u8 }) } else { Err(wrong()) }
}

pub(super) fn time_of_day(value: &Value) -> Result<TimeOfDay> {
    let wrong = || {
        Wrong::new(ids::WRONG_TYPE, format!("expected a time of day, found {}", value.describe()), "write \"09:00\"")
    };
    let Value::Text { text, .. } = value else { return Err(wrong()) };
    let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
    let read =
        |part: &str| part.parse::<u16>().ok().filter(|_| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()));
    match (read(hours), read(minutes)) {
        (Some(24), Some(0)) => Ok(TimeOfDay(24 * 60)),
        (Some(hours), Some(minutes)) if hours < 24 && minutes < 60 => Ok(TimeOfDay(hours * 60 + minutes)),
        _ => Err(wrong()),
    }
}

pub(super) fn days(value: &Value) -> Result<Days> {
    const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let wrong = || {
        Wrong::new(
            ids::UNKNOWN_VALUE,
            format!("expected days, found {}", value.describe()),
            "write \"mon-fri\" or \"sat,sun\"",
        )
    };
    let Value::Text { text, .. } = value else { return Err(wrong()) };
    let read = |word: &str| DAYS.iter().position(|day| *day == word.trim()).map(|day| day as u8).ok_or_else(wrong);
    let mut found = BTreeSet::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => found.extend([read(part)?]),
            Some((from, to)) => {
                let (mut day, to) = (read(from)?, read(to)?);
                while day != to {
                    found.insert(day);
                    day = (day + 1) % 7;
                }
                found.insert(to);
            }
        }
    }
    Ok(Days(found))
}

/// The names of the IANA time zone database (2025b), links among them, sorted.
const ZONES: &str = include_str!("zones.txt");

pub(super) fn zone(value: &Value) -> Result<String> {
    let text = text(value)?;
    if ZONES.lines().any(|zone| zone == text) {
        return Ok(text);
    }
    let lower = text.to_lowercase();
    let last = |zone: &str| zone.rsplit('/').next().unwrap_or_default().to_lowercase();
    // A city alone, or another case, is as good as right.
    let near = ZONES
        .lines()
        .find(|zone| zone.to_lowercase() == lower || (lower.len() > 3 && last(zone) == lower))
        .or_else(|| names::nearest(&text, ZONES.lines()));
    let offset = text.contains(['+', ':']) || text.bytes().all(|b| b.is_ascii_uppercase());
    let hint = match near {
        _ if offset => "write the name of a place, such as \"Europe/Zurich\": an abbreviation or offset does not say when daylight saving begins".to_owned(),
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "write a name of the IANA database, such as \"Europe/Zurich\" or \"UTC\"".to_owned(),
    };
    let shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    Err(Wrong::new(ids::BAD_ZONE, format!("unknown time zone `{shown}`"), hint))
}

pub(super) fn word(value: &Value, known: &'static [&'static str]) -> Result<&'static str> {
    match value {
        Value::Text { text, .. } => known.iter().find(|word| *word == text).copied().ok_or_else(|| {
            Wrong::new(ids::UNKNOWN_VALUE, format!("unknown value `{text}`"), names::did_you_mean(text, known))
        }),
        other => Err(Wrong::kind(
            &format!("one of {}", names::list(known)),
            other,
            format!("write one of {}", names::list(known)),
        )),
    }
}

pub(super) fn list(value: &Value) -> Result<Vec<String>> {
    let text = text(value)?;
    let parts: Vec<String> = text.split(',').map(|part| part.trim().to_owned()).collect();
    if parts.iter().any(String::is_empty) {
        return Err(Wrong::new(
            ids::OUT_OF_RANGE,
            "an empty entry in a list",
            "write texts separated by single commas: \"a,b\"",
        ));
    }
    Ok(parts)
}

pub(super) fn words(value: &Value, known: &'static [&'static str]) -> Result<Vec<&'static str>> {
    list(value)?.into_iter().map(|text| word(&Value::Text { text, bare: false }, known)).collect()
}

pub(super) fn parsed<T: FromStr<Err = ParseWordError>>(value: &Value) -> Result<T> {
    match value {
        Value::Text { text, .. } => text.parse().map_err(|error: ParseWordError| {
            Wrong::new(
                ids::UNKNOWN_VALUE,
                format!("unknown {} `{}`", error.kind, error.word),
                names::did_you_mean(text, &error.known),
            )
        }),
        other => text(other).and_then(|_| Err(Wrong::kind("a word", other, "write a word"))),
    }
}

pub(super) fn env_name(value: &Value) -> Result<String> {
    let text = text(value)?;
    let valid = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !text.as_bytes()[0].is_ascii_digit();
    if valid {
        Ok(text)
    } else if let Some(name) = text.strip_prefix('$').map(|name| name.trim_matches(['{', '}']))
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    {
        let hint = format!("write its name without the `$`: \"{name}\"");
        Err(Wrong::new(ids::BAD_NAME, "not the name of an environment variable", hint))
    } else {
        Err(Wrong::new(
            ids::BAD_NAME,
            "not the name of an environment variable",
            "write its name, such as \"CAMPUS_KEY\": letters, digits and `_`",
        ))
    }
}

/// `host:port`; IPv6 in brackets.
pub(super) fn listen(value: &Value) -> Result<String> {
    let text = text(value)?;
    let wrong = || {
        Wrong::new(
            ids::WRONG_TYPE,
            format!("{text:?} is no address and port"),
            "write \"127.0.0.1:8080\", IPv6 as \"[::1]:8080\"",
        )
    };
    let (address, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port_fine = port.parse::<u16>().is_ok_and(|port| port > 0) && port.bytes().all(|b| b.is_ascii_digit());
    let bare = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let address_fine = match bare {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !address.contains(':') && host_problem(address).is_none(),
    };
    if port_fine && address_fine { Ok(text) } else { Err(wrong()) }
}

pub(super) fn ports(value: &Value) -> Result<(u16, u16)> {
    let wrong = || {
        Wrong::new(
            ids::WRONG_TYPE,
            format!("expected a range of ports, found {}", value.describe()),
            "write \"20000-20999\"",
        )
    };
    let Value::Text { text, .. } = value else { return Err(wrong()) };
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if first > 0 && first <= last => Ok((first, last)),
        (Ok(first), Ok(last)) => Err(Wrong::new(
            ids::OUT_OF_RANGE,
            format!("the range {first}-{last} is empty"),
            "write the lower port first",
        )),
        _ => Err(wrong()),
    }
}

fn host_problem(text: &str) -> Option<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if text.is_empty() {
        Some("the address is empty".to_owned())
    } else if text.starts_with('-') {
        Some("an address that begins with `-`".to_owned())
    } else if text.len() > 253 {
        Some("the address is longer than 253 characters".to_owned())
    } else {
        text.chars().find(|c| !fine(*c)).map(|c| format!("`{}` in an address", c.escape_debug()))
    }
}

/// A host name or an address; it reaches a socket and the member record, never a shell.
pub(super) fn host(value: &Value) -> Result<String> {
    let text = text(value)?;
    // `{}` is filled in per node of a range.
    let Some(problem) = host_problem(&text.replacen("{}", "0", 1)) else { return Ok(text) };
    let hint = if text.contains('@') {
        "the login name is a setting of its own: `ssh user=\"…\"`"
    } else {
        "write a host name or an IP address"
    };
    Err(Wrong::new(ids::BAD_NAME, problem, hint))
}

pub(super) fn url(value: &Value) -> Result<String> {
    let text = text(value)?;
    let wrong = |message: &str, hint: &str| Err(Wrong::new(ids::WRONG_TYPE, message.to_owned(), hint));
    let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        return wrong("not a web address", "write \"https://…\"");
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Wrong::new(
            ids::LITERAL_SECRET,
            "a web address with a login in it",
            "remove it: keys are references (`key env=\"NAME\"`)",
        ));
    }
    if authority.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return wrong("not a web address", "write \"https://host/path\"");
    }
    Ok(text)
}

pub(super) fn sha256(value: &Value) -> Result<String> {
    let text = text(value)?;
    let hex = text.strip_prefix("sha256:").unwrap_or(&text);
    if hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(hex.to_ascii_lowercase())
    } else {
        Err(Wrong::new(ids::WRONG_TYPE, "not a SHA-256", "write its 64 hexadecimal digits"))
    }
}

pub(super) fn scalar(value: &Value) -> Result<String> {
    match value {
        Value::Integer(number) => Ok(number.to_string()),
        Value::Text { text, .. } => obeyed(text).map_or_else(|| Ok(text.clone()), Err),
        other => Err(Wrong::kind("a text or a whole number", other, "write it in quotes, as the program expects it")),
    }
}
