//! A record: one line of a history.
//!
//! The fields of the event stand beside those of the record. Serde's `flatten` would copy all fields of a line before
//! it reads the first one, and reading histories is most of the work of a check. So the record takes its own fields
//! out of the line, and the event reads the others.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor,
        value::{BorrowedStrDeserializer, MapAccessDeserializer},
    },
};

use crate::{Event, ProcessName, Stamp};

/// One event of a history: who reported it, when, and what happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Record {
    /// The number in the history, counted from 0 by the recorder. Does not order processes: a stream that a fault held
    /// back may reach the recorder after later events of other processes. A line without the number has that of its
    /// place in the file.
    #[cfg_attr(test, schemars(default))]
    pub seq: u64,
    /// The process that reports the event.
    pub process: ProcessName,
    /// The process's own number for the event, from 0. A gap means that an event was lost.
    pub n: u64,
    /// The time of the event by the process's own reading of the run's clock. Never goes back within a process. 0 for
    /// the controller, which may run on another machine.
    pub at: Stamp,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Line { place: None }.deserialize(d)
    }
}

/// Reads a line.
pub(crate) struct Line {
    /// The number of the record if the line does not give it.
    pub place: Option<u64>,
}

impl<'de> DeserializeSeed<'de> for Line {
    type Value = Record;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Record, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Line {
    type Value = Record;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an event with `seq`, `process`, `n` and `at`")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Record, M::Error> {
        let mut fields = Fields { map, own: Own::default() };
        let event = Event::deserialize(MapAccessDeserializer::new(&mut fields))?;
        let Own { seq, process, n, at } = fields.own;
        let missing = M::Error::missing_field;
        Ok(Record {
            seq: seq.or(self.place).ok_or_else(|| missing("seq"))?,
            process: process.ok_or_else(|| missing("process"))?,
            n: n.ok_or_else(|| missing("n"))?,
            at: at.ok_or_else(|| missing("at"))?,
            event,
        })
    }
}

/// The record's own fields, as far as they were read.
#[derive(Default)]
struct Own {
    seq: Option<u64>,
    process: Option<ProcessName>,
    n: Option<u64>,
    at: Option<Stamp>,
}

/// The fields of a line. Keeps the record's own fields, and hands out those of the event.
struct Fields<M> {
    map: M,
    own: Own,
}

/// The name of a field; borrowed from the line unless it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Fields<M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        let Fields { map, own } = self;
        while let Some(Name(name)) = map.next_key()? {
            match name.as_ref() {
                "seq" => once(&mut own.seq, map, "seq")?,
                "process" => once(&mut own.process, map, "process")?,
                "n" => once(&mut own.n, map, "n")?,
                "at" => once(&mut own.at, map, "at")?,
                _ => {
                    return match name {
                        Cow::Borrowed(name) => seed.deserialize(BorrowedStrDeserializer::new(name)),
                        Cow::Owned(name) => seed.deserialize(name.into_deserializer()),
                    }
                    .map(Some);
                }
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a field that a line has only once.
fn once<'de, T, M>(field: &mut Option<T>, map: &mut M, name: &'static str) -> Result<(), M::Error>
where
    T: Deserialize<'de>,
    M: MapAccess<'de>,
{
    if field.replace(map.next_value()?).is_some() {
        return Err(M::Error::duplicate_field(name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HoldId;

    fn read(line: &str) -> Result<Record, String> {
        serde_json::from_str(line).map_err(|e| e.to_string())
    }

    #[test]
    fn the_order_of_the_fields_does_not_matter() {
        let read = |line| read(line).unwrap();
        let usual = read(r#"{"seq":7,"process":"worker-1","n":3,"at":5,"event":"renew","hold":9}"#);
        assert_eq!(usual.event, Event::Renew { hold: HoldId(9) });
        for line in [
            r#"{"hold":9,"at":5,"event":"renew","n":3,"process":"worker-1","seq":7}"#,
            r#"{"event":"renew","seq":7,"process":"worker-1","hold":9,"n":3,"at":5}"#,
            r#"{"s\u0065q":7,"process":"worker-\u0031","n":3,"at":5,"event":"renew","h\u006fld":9}"#,
        ] {
            assert_eq!(read(line), usual, "{line}");
        }
    }

    #[test]
    fn a_client_step_concerns_the_hold_that_it_names() {
        for step in [
            r#""renew","hold":9"#,
            r#""release","hold":9"#,
            r#""read","hold":9,"op":1"#,
            r#""work","hold":9,"planned_ns":1"#,
            r#""write","hold":9,"op":1"#,
            r#""resend","hold":9,"op":1"#,
            r#""undo","attempt":9"#,
        ] {
            let line = format!(r#"{{"seq":7,"process":"worker-1","n":3,"at":5,"event":{step}}}"#);
            assert_eq!(read(&line).unwrap().event.attempt(), Some(HoldId(9)), "{step}");
        }
    }

    #[test]
    fn an_admission_concerns_its_hold_also_if_it_is_a_repeat() {
        for (fields, hold) in [
            (r#""hold":9,"op":1,"#, Some(HoldId(9))),
            (r#""hold":9,"op":1,"repeat":false,"#, Some(HoldId(9))),
            (r#""hold":9,"op":1,"repeat":true,"#, Some(HoldId(9))),
            ("", None),
        ] {
            let event = format!(r#""admission","number":1,"key":"k0","kind":"write",{fields}"arms":[]"#);
            let line = format!(r#"{{"seq":7,"process":"resource","n":3,"at":5,"event":{event}}}"#);
            assert_eq!(read(&line).unwrap().event.attempt(), hold, "{line}");
        }
    }

    #[test]
    fn each_field_is_there_once() {
        let fields =
            [r#""seq":7"#, r#""process":"worker-1""#, r#""n":3"#, r#""at":5"#, r#""event":"renew""#, r#""hold":9"#];
        for (i, field) in fields.iter().enumerate() {
            let name = field.split('"').nth(1).unwrap();
            let mut others = fields.to_vec();
            others.remove(i);
            let error = read(&format!("{{{}}}", others.join(","))).unwrap_err();
            assert!(error.contains(&format!("missing field `{name}`")), "{error}");
            let error = read(&format!("{{{},{field}}}", fields.join(","))).unwrap_err();
            assert!(error.contains(&format!("duplicate field `{name}`")), "{error}");
        }
    }
}
