//! A lease in a message: whole milliseconds, rounded up.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(lease: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(super::whole_ms(*lease))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}
