//! Histories that other programs recorded.

mod assemble;
mod edn;
mod event;
mod format;
mod jepsen;
mod porcupine;
#[cfg(test)]
mod tests;

use std::io::Read;

use crate::{
    check::Options,
    model::ModelKind,
    operation::{History, Value},
};
use assemble::Assembler;

pub use format::{Format, FormatError};

/// Steps of the searches over all objects of a file: about a minute on a slow machine.
const STEPS: u64 = 2_000_000_000;

/// How a file is read. A field that is `None` is found in the file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    /// The kind of the objects.
    pub model: Option<ModelKind>,
    /// The value of each object at the start, as the file would write it.
    pub initial: Option<&'a str>,
}

/// Reads a whole file, and says how its history is to be judged. The caller can set the memory and the steps.
///
/// # Errors
/// A line is no operation of the model, the operations are of two models, an answer has no call, or the file cannot be
/// read.
pub fn read(format: Format, file: impl Read, asked: Asked) -> Result<(History, Options), FormatError> {
    let (events, ignored) = match format {
        Format::JepsenEdn => jepsen::read(file)?,
        Format::PorcupineLog => porcupine::read(file)?,
    };
    let model = asked.model.map_or_else(|| assemble::model_of(&events), Ok)?;
    let mut assembler = Assembler::new(model, &events)?;
    events.iter().try_for_each(|event| assembler.add(event))?;
    let mut history = assembler.finish()?;
    history.ignored = ignored;
    let initial = match asked.initial {
        Some(_) if model.is_lock() => {
            return Err(FormatError::Asked(format!("a {} has no value at the start: it is free", model.name())));
        }
        Some(text) => {
            let form =
                edn::one(text, 1).map_err(|_| FormatError::Asked(format!("`{text}` is no value of the format")))?;
            assemble::interned(&mut history.values, model, &form)
        }
        None => Value::ABSENT,
    };
    Ok((history, Options { model, initial, memory: 512 << 20, steps: STEPS }))
}
