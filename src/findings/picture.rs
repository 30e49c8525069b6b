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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::fixtures::run;

    #[test]
    fn a_picture_names_the_run_of_its_history() {
        let history = concat!(env!("CARGO_MANIFEST_DIR"), "/checker/tests/corpus/kleppmann-pause.jsonl");
        let runs = [("K1", 1, "another"), ("K2", 2, "corpus"), ("K1", 3, "runs/corpus")];
        let runs = runs.map(|(case, seed, name)| CaseRun { seed, run: name.to_owned(), ..run(case, 0) });
        let read = |runs: &[CaseRun]| Picture::read(history.as_ref(), "K1", runs);
        let caption = read(&runs).unwrap().markdown();
        assert!(caption.contains("\n\n*K1, seed 3. "), "{caption}");
        let refused = read(&runs[..2]).unwrap_err().to_string();
        assert!(refused.contains("kleppmann-pause.jsonl: the data has no run of K1 with this history"), "{refused}");
    }
}
