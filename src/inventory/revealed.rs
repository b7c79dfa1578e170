//! A secret on the wire: a plain string there, and hidden wherever a message is printed.

use serde::{Deserialize, Deserializer, Serializer};

use crate::base::Secret;

pub fn serialize<S: Serializer>(secret: &Secret<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.reveal())
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret<String>, D::Error> {
    String::deserialize(deserializer).map(Secret::new)
}

/// The same, where there may be none.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::base::Secret;

    pub fn serialize<S: Serializer>(secret: &Option<Secret<String>>, serializer: S) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(|secret| secret.reveal()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret<String>>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
    }
}
