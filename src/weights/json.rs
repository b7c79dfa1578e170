//! Small readers for `config.json`: whatever is absent, null or of the wrong type is `None`.

use serde_json::{Map, Value};

/// An object of a configuration with fall-back names per field, as families name the same thing differently.
#[derive(Clone, Copy)]
pub(super) struct Object<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Object<'a> {
    /// The first of these keys that is not null.
    pub(super) fn value(self, keys: &[&str]) -> Option<&'a Value> {
        keys.iter().find_map(|key| self.0.get(*key).filter(|value| !value.is_null()))
    }

    /// A non-negative integer (`4096` or `4096.0`).
    pub(super) fn number(self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| self.0.get(*key).and_then(as_number))
    }

    /// A count that fits 32 bits.
    pub(super) fn count(self, keys: &[&str]) -> Option<u32> {
        self.number(keys).and_then(|value| u32::try_from(value).ok())
    }

    /// A flag.
    pub(super) fn flag(self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    /// A text.
    pub(super) fn text(self, keys: &[&str]) -> Option<&'a str> {
        keys.iter().find_map(|key| self.0.get(*key)?.as_str())
    }

    /// A list.
    pub(super) fn list(self, keys: &[&str]) -> Option<&'a [Value]> {
        keys.iter().find_map(|key| self.0.get(*key)?.as_array()).map(Vec::as_slice)
    }

    /// A list of integers.
    pub(super) fn numbers(self, keys: &[&str]) -> Option<Vec<u64>> {
        self.list(keys)?.iter().map(as_number).collect()
    }

    /// A child object.
    pub(super) fn object(self, keys: &[&str]) -> Option<Object<'a>> {
        keys.iter().find_map(|key| self.0.get(*key)?.as_object()).map(Object)
    }
}

/// A non-negative integer, also where it was written as a float.
pub(super) fn as_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        ((0.0..9e15).contains(&float) && float.fract() == 0.0).then_some(float as u64)
    })
}
