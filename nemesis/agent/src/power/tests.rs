use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use proptest::prelude::*;

use super::{Canary, Place, RolledBack, roll_back, undo::UndoLogs};

/// A file under logs, changed as the file system does.
struct Changed {
    logs: UndoLogs,
}

impl Changed {
    fn write(&mut self, path: &Path, at: u64, data: &[u8]) {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        self.logs.before(path, &file, at, at + data.len() as u64).unwrap();
        file.write_all_at(data, at).unwrap();
    }

    fn cut(&mut self, path: &Path, length: u64) {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        self.logs.before(path, &file, length, u64::MAX).unwrap();
        file.set_len(length).unwrap();
    }
}

/// A directory of data and a directory of logs.
struct Dirs(tempfile::TempDir);

impl Dirs {
    fn new() -> Dirs {
        let dirs = Dirs(tempfile::tempdir().unwrap());
        fs::create_dir(dirs.0.path().join("data")).unwrap();
        fs::create_dir(dirs.0.path().join("logs")).unwrap();
        dirs
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("data/file")
    }

    fn mounted(&self) -> Changed {
        Changed { logs: UndoLogs::open(&self.0.path().join("logs")).unwrap() }
    }

    fn lose_power(&self) -> RolledBack {
        roll_back(Place { data: &self.0.path().join("data"), logs: &self.0.path().join("logs") }).unwrap()
    }
}

#[test]
fn what_was_synced_stays_and_what_was_not_is_gone_whatever_the_file_is_called() {
    let dirs = Dirs::new();
    let mut mounted = dirs.mounted();
    mounted.write(&dirs.file(), 0, b"synced");
    mounted.logs.synced(&dirs.file()).unwrap();
    mounted.write(&dirs.file(), 3, b"????, and more");
    let renamed = dirs.file().with_file_name("renamed");
    fs::rename(dirs.file(), &renamed).unwrap();
    drop(mounted);
    assert_eq!(dirs.lose_power(), RolledBack { files: 1, pages: 1, cut_bytes: 11 });
    assert_eq!(fs::read(&renamed).unwrap(), b"synced");
    assert_eq!(dirs.lose_power(), RolledBack::default(), "the second time nothing is left to lose");
}

#[test]
fn a_file_that_was_never_synced_is_there_and_empty() {
    let dirs = Dirs::new();
    dirs.mounted().write(&dirs.file(), 0, b"never synced");
    dirs.lose_power();
    assert_eq!(fs::read(dirs.file()).unwrap(), b"");
}

#[test]
fn a_kill_between_two_losses_of_power_keeps_what_is_unsynced_unsynced() {
    let dirs = Dirs::new();
    let mut first = dirs.mounted();
    first.write(&dirs.file(), 0, b"old");
    first.logs.synced(&dirs.file()).unwrap();
    first.write(&dirs.file(), 0, b"new");
    drop(first);
    // After a SIGKILL, the kernel still has the unsynced data, and may lose them later.
    dirs.mounted().write(&dirs.file(), 1, b"EW");
    assert_eq!(fs::read(dirs.file()).unwrap(), b"nEW");
    dirs.lose_power();
    assert_eq!(fs::read(dirs.file()).unwrap(), b"old");
}

#[test]
fn an_unfinished_end_of_a_log_belongs_to_no_change() {
    let dirs = Dirs::new();
    let mut mounted = dirs.mounted();
    mounted.write(&dirs.file(), 0, &[1; 9000]);
    mounted.logs.synced(&dirs.file()).unwrap();
    mounted.write(&dirs.file(), 0, &[2; 4096]);
    drop(mounted);
    let log = fs::read_dir(dirs.0.path().join("logs")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::metadata(&log).unwrap().len();
    OpenOptions::new().append(true).open(&log).unwrap().set_len(whole + 100).unwrap();
    // The next mount goes on behind the last whole record.
    dirs.mounted().write(&dirs.file(), 4096, &[3; 4096]);
    dirs.lose_power();
    assert_eq!(fs::read(dirs.file()).unwrap(), vec![1; 9000]);
}

#[test]
fn the_canary_tells_a_loss_from_a_restart_and_from_damage() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Canary::look(dir.path()), Canary::Damaged);
    Canary::leave(dir.path()).unwrap();
    assert_eq!(Canary::look(dir.path()), Canary::Kept);
    let canary = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    fs::write(&canary, "synced\n").unwrap();
    assert_eq!(Canary::look(dir.path()), Canary::LostUnsynced);
    File::create(&canary).unwrap();
    assert_eq!(Canary::look(dir.path()), Canary::Damaged);
}

/// One thing that a server does with its file.
#[derive(Debug, Clone)]
enum Act {
    Write(u64, Vec<u8>),
    Cut(u64),
    Sync,
    /// The file system ends and is mounted again.
    Kill,
}

fn act() -> impl Strategy<Value = Act> {
    let data = (any::<u8>(), 0..9000usize).prop_map(|(byte, length)| vec![byte; length]);
    prop_oneof![
        4 => (0..20_000u64, data).prop_map(|(at, data)| Act::Write(at, data)),
        2 => (0..20_000u64).prop_map(Act::Cut),
        1 => Just(Act::Sync),
        1 => Just(Act::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn after_any_changes_a_loss_of_power_leaves_the_last_sync(acts in prop::collection::vec(act(), 0..30)) {
        let dirs = Dirs::new();
        File::create(dirs.file()).unwrap();
        let mut mounted = dirs.mounted();
        let mut synced = Vec::new();
        for act in acts {
            match act {
                Act::Write(at, data) => mounted.write(&dirs.file(), at, &data),
                Act::Cut(length) => mounted.cut(&dirs.file(), length),
                Act::Sync => {
                    mounted.logs.synced(&dirs.file()).unwrap();
                    synced = fs::read(dirs.file()).unwrap();
                }
                Act::Kill => mounted = dirs.mounted(),
            }
        }
        dirs.lose_power();
        prop_assert!(fs::read(dirs.file()).unwrap() == synced);
    }
}
