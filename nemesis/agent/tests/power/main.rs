//! The file system that forgets unsynced data, mounted: needs root and `/dev/fuse`. Each test has a mount namespace of
//! its own, so nothing stays mounted.

#[path = "../../../../tests/shared/say.rs"]
mod say;

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, SystemTime},
};

use agent::power::{Canary, Place, RolledBack, roll_back, serve};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use say::left_out;

/// A machine with one disk.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().join("logs")
    }

    /// Calls `act` with the mounted directory, and ends the file system afterwards.
    fn runs(&self, act: impl FnOnce(&Path)) {
        let (mounted, is_mounted) = mpsc::channel();
        let (data, logs) = (self.data(), self.logs());
        let serving = thread::spawn(move || {
            let mounted = || mounted.send(()).map_err(std::io::Error::other);
            serve(Place { data: &data, logs: &logs }, mounted)
        });
        if is_mounted.recv().is_err() {
            panic!("the file system did not start: {:?}", serving.join().unwrap());
        }
        act(&self.data());
        umount2(&self.data(), MntFlags::MNT_DETACH).unwrap();
        serving.join().unwrap().unwrap();
    }

    fn loses_power(&self) -> RolledBack {
        roll_back(Place { data: &self.data(), logs: &self.logs() }).unwrap()
    }
}

/// Calls `test` in a mount namespace that nobody else sees.
fn on_a_machine(test: impl FnOnce(&Machine) + Send) {
    if !Path::new("/dev/fuse").exists() {
        assert!(std::env::var_os("CI").is_none(), "no /dev/fuse: `sudo modprobe fuse`");
        left_out("no /dev/fuse here");
        return;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("these tests need root");
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            let machine = Machine { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(machine.data()).unwrap();
            test(&machine);
        });
    });
}

fn append(path: &Path, data: &[u8]) -> File {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(data).unwrap();
    file
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_loss_of_power_forgets_what_was_not_synced_and_nothing_else() {
    on_a_machine(|machine| {
        machine.runs(|data| {
            Canary::leave(data).unwrap();
            append(&data.join("appended"), b"one\n").sync_data().unwrap();
            append(&data.join("appended"), b"two\n");
            append(&data.join("never-synced"), b"x");
            fs::create_dir(data.join("wal.tmp")).unwrap();
            append(&data.join("wal.tmp/0"), &[7; 10_000]).sync_all().unwrap();
            fs::rename(data.join("wal.tmp"), data.join("wal")).unwrap();
            let mut log = OpenOptions::new().write(true).open(data.join("wal/0")).unwrap();
            log.seek(SeekFrom::Start(5_000)).unwrap();
            log.write_all(&[8; 100]).unwrap();
            log.set_len(6_000).unwrap();
            let each = OpenOptions::new().create(true).append(true).custom_flags(libc::O_DSYNC).open(data.join("each"));
            each.unwrap().write_all(b"synced by its flag").unwrap();
            append(&data.join("removed"), b"x").sync_all().unwrap();
            fs::remove_file(data.join("removed")).unwrap();
            // Everything is seen as long as the machine runs.
            assert_eq!(fs::read(data.join("appended")).unwrap(), b"one\ntwo\n");
            assert_eq!(fs::metadata(data.join("wal/0")).unwrap().len(), 6_000);
            assert_eq!(fs::read_dir(data).unwrap().count(), 5);
        });
        let lost = machine.loses_power();
        assert_eq!((lost.files, lost.cut_bytes), (4, 4 + 1 + 11), "{lost:?}");
        machine.runs(|data| {
            assert_eq!(Canary::look(data), Canary::LostUnsynced);
            assert_eq!(fs::read(data.join("appended")).unwrap(), b"one\n");
            assert_eq!(fs::read(data.join("never-synced")).unwrap(), b"");
            assert_eq!(fs::read(data.join("wal/0")).unwrap(), [7; 10_000]);
            assert_eq!(fs::read(data.join("each")).unwrap(), b"synced by its flag");
            assert!(!data.join("removed").exists());
        });
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn synced_data_come_back_after_a_hole_or_a_cut() {
    use nix::fcntl::{FallocateFlags, fallocate};
    on_a_machine(|machine| {
        let names = ["punched", "emptied"];
        machine.runs(|data| {
            let [punched, emptied] = names.map(|name| {
                append(&data.join(name), &[7; 10_000]).sync_all().unwrap();
                OpenOptions::new().write(true).open(data.join(name)).unwrap()
            });
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&punched, punch, 0, 5_000).unwrap();
            emptied.set_len(0).unwrap();
            assert_eq!(fs::read(data.join("punched")).unwrap()[..5_000], [0; 5_000]);
        });
        assert_eq!(machine.loses_power().files, 2);
        for name in names {
            assert_eq!(fs::read(machine.data().join(name)).unwrap(), [7; 10_000], "{name}");
        }
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn an_end_without_a_loss_of_power_keeps_everything() {
    on_a_machine(|machine| {
        machine.runs(|data| {
            Canary::leave(data).unwrap();
            append(&data.join("file"), b"not synced");
        });
        machine.runs(|data| {
            assert_eq!(Canary::look(data), Canary::Kept);
            assert_eq!(fs::read(data.join("file")).unwrap(), b"not synced");
        });
        // The data are still unsynced.
        assert_eq!(machine.loses_power().files, 2);
        machine.runs(|data| assert_eq!(fs::read(data.join("file")).unwrap(), b""));
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn modes_owners_links_and_allocated_space_are_those_of_a_disk() {
    on_a_machine(|machine| {
        machine.runs(|data| {
            let path = data.join("file");
            let file = append(&path, b"content");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
            nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, 50_000).unwrap();
            file.sync_all().unwrap();
            fs::hard_link(&path, data.join("link")).unwrap();
            let found = fs::metadata(data.join("link")).unwrap();
            assert_eq!((found.mode() & 0o7777, found.uid(), found.gid(), found.len()), (0o640, 7, 8, 50_000));
            assert_eq!(fs::remove_dir(data).unwrap_err().raw_os_error(), Some(libc::EBUSY));
            assert!(File::open(data.join("missing")).unwrap_err().kind() == std::io::ErrorKind::NotFound);
            let open = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            fs::remove_file(data.join("link")).unwrap();
            open.write_all_at(b"C", 0).unwrap();
            let mut first = [0; 7];
            open.read_exact_at(&mut first, 0).unwrap();
            assert_eq!(&first, b"Content");
        });
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_full_disk_of_the_logs_refuses_changes_and_loses_nothing_synced() {
    on_a_machine(|machine| {
        let log_disk = |flags, size| {
            mount(Some("logs"), &machine.logs(), Some("tmpfs"), flags, Some(size)).unwrap();
        };
        fs::create_dir(machine.logs()).unwrap();
        // Room for the log of three pages, and for a part of the fourth.
        log_disk(MsFlags::empty(), "size=16k");
        machine.runs(|data| {
            let file = append(&data.join("file"), &[1; 16 * 4096]);
            file.sync_all().unwrap();
            let file = OpenOptions::new().write(true).open(data.join("file")).unwrap();
            let written = |page: u64| file.write_all_at(&[2; 4096], page * 4096);
            assert_eq!((0..3).map(written).filter(Result::is_ok).count(), 3);
            assert_eq!(written(3).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
            log_disk(MsFlags::MS_REMOUNT, "size=1m");
            assert_eq!((5..9).map(written).filter(Result::is_ok).count(), 4);
        });
        assert_eq!(machine.loses_power(), RolledBack { files: 1, pages: 7, cut_bytes: 0 });
        assert!(fs::read(machine.data().join("file")).unwrap() == [1; 16 * 4096]);
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_file_that_is_removed_or_replaced_leaves_no_log() {
    on_a_machine(|machine| {
        machine.runs(|data| {
            append(&data.join("removed"), b"not synced");
            fs::remove_file(data.join("removed")).unwrap();
            let mut open = append(&data.join("removed-while-open"), b"not synced");
            fs::remove_file(data.join("removed-while-open")).unwrap();
            open.write_all(b"nor this").unwrap();
            append(&data.join("replaced"), b"old and not synced");
            append(&data.join("new"), b"new").sync_all().unwrap();
            fs::rename(data.join("new"), data.join("replaced")).unwrap();
            append(&data.join("linked"), b"not synced");
            fs::hard_link(data.join("linked"), data.join("link")).unwrap();
            fs::remove_file(data.join("linked")).unwrap();
            assert_eq!(fs::read_dir(machine.logs()).unwrap().count(), 1, "of the file that still has a name");
        });
        assert_eq!(machine.loses_power(), RolledBack { files: 1, pages: 0, cut_bytes: 10 });
        assert_eq!(fs::read(machine.data().join("replaced")).unwrap(), b"new");
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_directory_that_is_emptied_while_it_is_read_is_read_to_its_end() {
    on_a_machine(|machine| {
        machine.runs(|data| {
            let names = (0..2000).map(|number| format!("a-file-whose-name-is-long-enough-for-many-reads-{number}"));
            names.for_each(|name| drop(File::create(data.join(name)).unwrap()));
            for entry in fs::read_dir(data).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
            assert_eq!(fs::read_dir(data).unwrap().count(), 0);
        });
    });
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn a_file_keeps_a_time_before_1970() {
    on_a_machine(|machine| {
        let before = |ms| SystemTime::UNIX_EPOCH - Duration::from_millis(ms);
        let modified = |dir: &Path| fs::metadata(dir.join("old")).unwrap().modified().unwrap();
        File::create(machine.data().join("old")).unwrap().set_modified(before(1_500)).unwrap();
        machine.runs(|data| {
            assert_eq!(modified(data), before(1_500));
            // fuser 0.18 reads the parts of a second of such a time backwards.
            File::options().write(true).open(data.join("old")).unwrap().set_modified(before(7_000)).unwrap();
            assert_eq!(modified(data), before(7_000));
        });
        assert_eq!(modified(&machine.data()), before(7_000));
    });
}
