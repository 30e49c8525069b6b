//! What people read: the summary of a run, its stories, its measures.

mod measures;
mod summary;
mod terminal;

pub use measures::Measures;
pub use summary::{figures, heading, story, summary, versions};
pub use terminal::{Terminal, print};
