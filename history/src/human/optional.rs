//! A duration that may be absent.

use std::time::Duration;

use serde::{Deserializer, Serializer};

use crate::human;

pub(crate) fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
    match d {
        Some(d) => human::serialize(d, s),
        None => s.serialize_none(),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    human::deserialize(d).map(Some)
}
