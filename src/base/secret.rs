//! A value that cannot be printed.

use std::fmt;

/// Wraps a secret. `Debug` and `Display` show `[secret]`; it cannot be serialised by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for the one place that hands it to the engine or the wire.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two candidates for one name where a type can be serialised, one where it cannot: should `Secret` ever learn
    /// to serialise itself, this does not compile.
    trait OnlyUnlessSerialize<Marker> {
        fn holds() {}
    }
    struct Serialisable;
    impl<T: ?Sized> OnlyUnlessSerialize<()> for T {}
    impl<T: ?Sized + serde::Serialize> OnlyUnlessSerialize<Serialisable> for T {}

    #[test]
    fn a_secret_has_no_printed_form() {
        <Secret<String> as OnlyUnlessSerialize<_>>::holds();
        let secret = Secret::new("hunter2".to_owned());
        let inside = (Some(&secret), [&secret]);
        let printed = format!("{secret} {secret:?} {secret:#?} {inside:?} {secret:>20}");
        assert!(!printed.contains("hunter2"), "{printed}");
        assert_eq!(secret.reveal(), "hunter2");
    }
}
