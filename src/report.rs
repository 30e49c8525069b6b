//! Reports: the summary of a run, its stories, its progress.

mod summary;
mod terminal;

pub use summary::{heading, story, summary, versions};
pub use terminal::{Terminal, print};
