//! Reports: the summary of a run, its stories, its pages, its progress.

mod html;
mod junit;
mod markdown;
mod summary;
mod terminal;

pub use html::{html, worst_window};
pub use junit::{TestCase, TestResult, TestedRun, junit, test_cases};
pub use markdown::{markdown, text as without_markup, title};
pub use summary::{heading, scenario, story, summary, versions};
pub use terminal::{Terminal, print, visible};
