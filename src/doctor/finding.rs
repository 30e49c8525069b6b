//! The findings of `harness doctor`, and their lines.

use serde::Serialize;

/// One thing that the harness needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The thing: a tool, or a fault.
    pub name: String,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    Works {
        found: String,
    },
    /// Missing, and needed only for some uses.
    Optional {
        why: String,
        needed_for: &'static str,
        mend: String,
    },
    Fails {
        why: String,
        mend: String,
    },
    NotTried {
        why: String,
    },
}

impl Finding {
    pub fn works(name: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { name: name.into(), outcome: Outcome::Works { found: found.into() } }
    }

    pub fn fails(name: impl Into<String>, why: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { name: name.into(), outcome: Outcome::Fails { why: why.into(), mend: mend.into() } }
    }

    pub fn not_tried(name: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding { name: name.into(), outcome: Outcome::NotTried { why: why.into() } }
    }

    pub fn text(&self) -> String {
        let line = |word: &str, text: &str| format!("  {word:<9}  {:<18}  {text}\n", self.name);
        let mend = |mend: &str| format!("  {:<9}  {:<18}  mend: {mend}\n", "", "");
        match &self.outcome {
            Outcome::Works { found } => line("works", found),
            Outcome::Optional { why, needed_for, mend: command } => {
                line("optional", &format!("{why}; needed only for {needed_for}")) + &mend(command)
            }
            Outcome::Fails { why, mend: command } => line("FAILS", why) + &mend(command),
            Outcome::NotTried { why } => line("not tried", why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_its_line() {
        let all = [
            Finding::works("kill", "proved"),
            Finding::fails("clock", "not permitted", "allow it"),
            Finding::not_tried("powerloss", "no engine"),
        ];
        let text: String = all.iter().map(Finding::text).collect();
        let expected = [
            "  works      kill                proved",
            "  FAILS      clock               not permitted",
            "                                 mend: allow it",
            "  not tried  powerloss           no engine",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
