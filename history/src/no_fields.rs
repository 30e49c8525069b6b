//! Events and phases without fields of their own. Serde's derive would ignore any fields that they are given.

use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

/// Reads an object that has no field.
pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<(), D::Error> {
    NoFields::deserialize(d).map(|NoFields {}| ())
}
