//! What any part of `flock.lock` must hold to: no key twice, no text that a terminal would obey, nothing endless.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::base::is_obeyed;

/// Longest text: a list of notes on one variant stays far below.
const MAX_TEXT: usize = 8 << 10;

/// A value that was looked at and forgotten.
pub(super) struct Strict;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what flock writes")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Strict, E> {
        Ok(Strict)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Strict, E> {
        Ok(Strict)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Strict, E> {
        Err(E::custom(format!("the negative number {number}")))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Strict, E> {
        Err(E::custom(format!("{number}, which is no whole number of 64 bits")))
    }

    fn visit_unit<E: Error>(self) -> Result<Strict, E> {
        Ok(Strict)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Strict, E> {
        if text.len() > MAX_TEXT {
            return Err(E::custom(format!("a text of {} bytes", text.len())));
        }
        match text.chars().find(|c| is_obeyed(*c)) {
            Some(c) => Err(E::custom(format!("a text with the control character {}", c.escape_unicode()))),
            None => Ok(Strict),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strict, A::Error> {
        while items.next_element::<Strict>()?.is_some() {}
        Ok(Strict)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Strict, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = members.next_key::<String>()? {
            self::Look.visit_str::<A::Error>(&key)?;
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("`{key}` is there twice")));
            }
            members.next_value::<Strict>()?;
        }
        Ok(Strict)
    }
}
