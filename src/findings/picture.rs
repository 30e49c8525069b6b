//! Pictures of windows, drawn from the histories of single runs.

use std::path::Path;

use crate::{exit::Unusable, judge::judge, report::worst_window, suite::CaseRun, timeline};

/// The picture of the worst window of a run.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The case of the run.
    pub case: String,
    /// The seed of the run.
    pub seed: u64,
    /// The headline of the window.
    pub headline: String,
    /// The picture as an SVG file.
    pub svg: String,
}

impl Picture {
    /// Draws the picture from the history of one of the recorded runs of a case.
    ///
    /// # Errors
    /// The file is no history, is of none of these runs, or has no window that can be drawn.
    pub fn read(path: &Path, case: &str, runs: &[CaseRun]) -> anyhow::Result<Picture> {
        let wrong = |problem: String| Unusable(format!("{}: {problem}", path.display()));
        let judged = judge(path)?;
        let has_it = |run: &&CaseRun| run.run.ends_with(&judged.verdicts.run) && !judged.verdicts.run.is_empty();
        let run = runs.iter().filter(|run| run.case == case).find(has_it);
        let run = run.ok_or_else(|| wrong(format!("the data has no run of {case} with this history")))?;
        let timeline = timeline::read(path, &judged.verdicts)?;
        let (headline, svg) = worst_window(&judged.verdicts, &timeline)
            .ok_or_else(|| wrong("the run has no double-holder window that can be drawn".to_owned()))?;
        Ok(Picture { case: case.to_owned(), seed: run.seed, headline, svg })
    }

    /// The name of its file.
    pub fn file_name(&self) -> String {
        format!("window-{}.svg", self.case)
    }

    /// The picture in a page, with a line that says which run and which window it shows.
    pub fn markdown(&self) -> String {
        let Picture { case, seed, headline, .. } = self;
        format!("![{headline}]({})\n\n*{case}, seed {seed}. {headline}.*", self.file_name())
    }
}
