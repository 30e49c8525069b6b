//! The log of one file: the length at the last sync, and the old content of every page that has changed since.
//!
//! A log is a file: 8 bytes with the length, then for each page 8 bytes with its number and the page itself. The name
//! of the log is an id that the file carries as an extended attribute, so a renamed file keeps its log. The log is
//! written before the change that it can undo. An unfinished last part of a log therefore belongs to a change that was
//! never made.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use rand::{TryRngCore, rngs::OsRng};
use serde::{Deserialize, Serialize};

const PAGE: u64 = 4096;
/// The extended attribute with the id of a file's log.
const ATTRIBUTE: &str = "user.harness.power";
const RECORD: usize = 8 + PAGE as usize;

/// The unsynced data that was lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolledBack {
    /// Number of files that were changed back.
    pub files: u64,
    /// Number of saved pages that were put back.
    pub pages: u64,
    /// Number of bytes by which files became shorter.
    pub cut_bytes: u64,
}

/// The logs of all files with unsynced changes.
#[derive(Debug)]
pub(super) struct UndoLogs {
    dir: PathBuf,
    open: HashMap<String, Log>,
}

#[derive(Debug)]
struct Log {
    file: File,
    synced_length: u64,
    saved: HashSet<u64>,
}

impl UndoLogs {
    /// Opens the logs in `dir`: the changes before a SIGKILL are still unsynced.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let mut open = HashMap::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let content = fs::read(entry.path())?;
            let Some((synced_length, pages)) = parse(&content) else {
                fs::remove_file(entry.path())?;
                continue;
            };
            let saved: HashSet<u64> = pages.map(|(page, _)| page).collect();
            let file = OpenOptions::new().write(true).open(entry.path())?;
            open.insert(entry.file_name().to_string_lossy().into_owned(), Log { file, synced_length, saved });
        }
        Ok(Self { dir: dir.to_owned(), open })
    }

    /// Saves the pages that a change of the bytes from `from` to `to` will overwrite. `path` leads to `file`, which is
    /// open for reading.
    pub(super) fn before(&mut self, path: &Path, file: &File, from: u64, to: u64) -> io::Result<()> {
        let id = match id_of(path)? {
            Some(id) => id,
            None => {
                let id = format!("{:016x}", OsRng.try_next_u64().map_err(io::Error::other)?);
                xattr::set_deref(path, ATTRIBUTE, id.as_bytes())?;
                id
            }
        };
        let log = match self.open.entry(id) {
            std::collections::hash_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::hash_map::Entry::Vacant(vacant) => {
                let found = file.metadata()?;
                if found.nlink() == 0 {
                    // A file without a name is gone after a loss of power.
                    return Ok(());
                }
                let synced_length = found.len();
                let log = File::create(self.dir.join(vacant.key()))?;
                log.write_all_at(&synced_length.to_le_bytes(), 0)?;
                vacant.insert(Log { file: log, synced_length, saved: HashSet::new() })
            }
        };
        let to = to.min(log.synced_length);
        if from >= to {
            return Ok(());
        }
        for page in from / PAGE..to.div_ceil(PAGE) {
            if log.saved.contains(&page) {
                continue;
            }
            let mut record = vec![0; RECORD];
            record[..8].copy_from_slice(&page.to_le_bytes());
            read_page(file, page, &mut record[8..])?;
            // The record begins where the last whole record ends: a full disk may have cut a record off.
            log.file.write_all_at(&record, (8 + log.saved.len() * RECORD) as u64)?;
            log.saved.insert(page);
        }
        Ok(())
    }

    /// Forgets the log of a file: the file as it is now stays.
    pub(super) fn synced(&mut self, path: &Path) -> io::Result<()> {
        let Some(id) = id_of(path)? else { return Ok(()) };
        if self.open.contains_key(&id) {
            fs::remove_file(self.dir.join(&id))?;
            self.open.remove(&id);
        }
        Ok(())
    }
}

/// Reads a page. The bytes behind the end of the file stay as they are.
fn read_page(file: &File, page: u64, into: &mut [u8]) -> io::Result<()> {
    let mut read = 0;
    while read < into.len() {
        match file.read_at(&mut into[read..], page * PAGE + read as u64) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn id_of(path: &Path) -> io::Result<Option<String>> {
    let id = xattr::get_deref(path, ATTRIBUTE)?;
    Ok(id.map(|id| String::from_utf8_lossy(&id).into_owned()))
}

/// Returns the synced length and the whole records of a log; none if not even the length is whole.
fn parse(log: &[u8]) -> Option<(u64, impl Iterator<Item = (u64, &[u8])>)> {
    let (length, records) = log.split_first_chunk::<8>()?;
    let pages = records.chunks_exact(RECORD).filter_map(|record| {
        let (page, content) = record.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*page), content))
    });
    Some((u64::from_le_bytes(*length), pages))
}

/// Undoes all logs in `logs` on the files under `dir`.
pub(super) fn roll_back(dir: &Path, logs: &Path, done: &mut RolledBack) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            roll_back(&entry.path(), logs, done)?;
        } else if kind.is_file()
            && let Some(id) = id_of(&entry.path())?
        {
            undo(&entry.path(), &logs.join(id), done)?;
        }
    }
    Ok(())
}

fn undo(path: &Path, log: &Path, done: &mut RolledBack) -> io::Result<()> {
    let content = match fs::read(log) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some((synced_length, pages)) = parse(&content) {
        let file = OpenOptions::new().write(true).open(path)?;
        done.files += 1;
        done.cut_bytes += file.metadata()?.len().saturating_sub(synced_length);
        for (page, old) in pages {
            let at = page * PAGE;
            let length = synced_length.saturating_sub(at).min(PAGE);
            file.write_all_at(&old[..length as usize], at)?;
            done.pages += 1;
        }
        file.set_len(synced_length)?;
    }
    fs::remove_file(log)
}
