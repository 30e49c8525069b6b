//! The processes of a container.

use std::{collections::BTreeSet, fs, path::PathBuf};

use super::error::ClockError;

/// Lists all processes of the container of `pid`, by their pids in the agent's namespace: those of its pid namespace.
/// For a process in the agent's own pid namespace: the process and its descendants.
///
/// # Errors
///
/// The process has ended, or may not be inspected.
pub fn processes_of(pid: i32) -> Result<Vec<i32>, ClockError> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let failed = |source| ClockError::from_io(pid, "look at the namespace", source);
    let (theirs, ours) = (namespace(&pid.to_string()).map_err(failed)?, namespace("self").map_err(failed)?);
    if parent(pid).is_none() {
        return Err(ClockError::Gone { pid });
    }
    let all = all().map_err(failed)?;
    if theirs != ours {
        let inside = |pid: &i32| namespace(&pid.to_string()).ok().is_some_and(|namespace: PathBuf| namespace == theirs);
        return Ok(all.into_iter().filter(|pid| inside(pid) && parent(*pid).is_some()).collect());
    }
    let mut family = BTreeSet::from([pid]);
    let parents: Vec<(i32, i32)> = all.into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    loop {
        let known = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid);
        family.extend(children.collect::<Vec<_>>());
        if family.len() == known {
            return Ok(family.into_iter().collect());
        }
    }
}

fn all() -> std::io::Result<BTreeSet<i32>> {
    Ok(fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the parent of a running process.
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // State and parent follow the name, which may contain blanks and brackets.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}
