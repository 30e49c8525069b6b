//! The canary: a file with one synced line and one unsynced line. It proves that a loss of power forgot the second
//! line and nothing else.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

const NAME: &str = ".harness-power-canary";
const SYNCED: &[u8] = b"synced\n";
const UNSYNCED: &[u8] = b"not synced\n";

/// The state of the canary after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Canary {
    /// The synced line is there, and the unsynced line is gone.
    LostUnsynced,
    /// Both lines are there.
    Kept,
    /// The file is missing or has other content.
    Damaged,
}

impl Canary {
    /// Writes the canary into a directory that is mounted.
    ///
    /// # Errors
    /// The file cannot be written or synced.
    pub fn leave(dir: &Path) -> io::Result<()> {
        let mut file = File::create(path(dir))?;
        file.write_all(SYNCED)?;
        file.sync_all()?;
        file.write_all(UNSYNCED)
    }

    /// Looks at the canary.
    pub fn look(dir: &Path) -> Canary {
        match fs::read(path(dir)) {
            Ok(content) if content == SYNCED => Canary::LostUnsynced,
            Ok(content) if content == [SYNCED, UNSYNCED].concat() => Canary::Kept,
            _ => Canary::Damaged,
        }
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}
