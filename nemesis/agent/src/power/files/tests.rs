use super::*;
use crate::power::{Place, roll_back};

#[test]
fn a_write_survives_a_loss_of_power_if_its_descriptor_syncs() {
    for (flags, kept) in [(0, ""), (libc::O_DSYNC, "written"), (libc::O_SYNC, "written")] {
        let dir = tempfile::tempdir().unwrap();
        let [data, logs] = ["data", "logs"].map(|name| dir.path().join(name));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&logs).unwrap();
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(data.join("file")).unwrap();
        let files = Files::new(File::open(&data).unwrap(), UndoLogs::open(&logs).unwrap());
        let mut state = files.state();
        let handle = state.opened(file);
        state.write(handle, 0, b"written", OpenFlags(flags)).unwrap();
        roll_back(Place { data: &data, logs: &logs }).unwrap();
        assert_eq!(fs::read_to_string(data.join("file")).unwrap(), kept, "flags {flags:#o}");
    }
}
