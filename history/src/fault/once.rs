//! Values of JSON or TOML in which no object has a field twice. [`Value`] itself keeps the last one silently.

use std::{cell::Cell, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, map::Entry};

/// The most values of a fault. A fault has about ten, and each list of nodes has at most one for each node of the plan:
/// 1,000 lock nodes, 64 workers and the resource.
const VALUES_MAX: u32 = 5_000;

/// A value whose objects have each field once. It has at most [`VALUES_MAX`] values inside.
pub(super) struct Once(pub Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Once, D::Error> {
        AnyValue { left: &Cell::new(VALUES_MAX) }.deserialize(deserializer).map(Once)
    }
}

/// Reads a value.
#[derive(Clone, Copy)]
struct AnyValue<'a> {
    /// The number of values that may still come.
    left: &'a Cell<u32>,
}

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format!("a fault has at most {VALUES_MAX} values, and this one has more")));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value of a fault")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Value, S::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Value, M::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let value = fields.next_value_seed(self)?;
            match object.entry(name) {
                Entry::Vacant(free) => _ = free.insert(value),
                Entry::Occupied(taken) => return Err(M::Error::custom(format!("duplicate field `{}`", taken.key()))),
            }
        }
        Ok(object.into())
    }
}
