//! `harness doctor`: tries what the clusters and each fault need on this machine, and names the command that mends it.

mod faults;
mod finding;
mod host;

use compose::Engine;
use finding::{Finding, Outcome};
use history::EngineFacts;
use serde_json::json;

use crate::{
    cli::{DoctorArgs, Format},
    exit::Exit,
    report::print,
    runner::runtime,
};

/// `harness doctor`
pub fn doctor(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let runtime = runtime()?;
    let mut findings = host::findings(&args.runs);
    let (engine, works) = engine(runtime.block_on(facts()));
    findings.push(engine);
    findings.extend(if works { faults::tried(args, &runtime)? } else { faults::not_tried("no Docker engine") });
    let failed = findings.iter().filter(|finding| matches!(finding.outcome, Outcome::Fails { .. })).count();
    print(&match args.format {
        Format::Text => {
            let rows: String = findings.iter().map(Finding::text).collect();
            let end = match failed {
                0 => "everything that was tried works".to_owned(),
                n => format!("{n} of {} do not work", findings.len()),
            };
            format!("{rows}\n{end}\n")
        }
        Format::Json => format!("{}\n", json!({"findings": findings, "failed": failed})),
    })?;
    Ok(if failed == 0 { Exit::Ok } else { Exit::Failed })
}

async fn facts() -> Result<EngineFacts, compose::Error> {
    Engine::connect().await?.facts().await
}

/// Returns the finding about the Docker engine, and whether the engine can be used.
fn engine(facts: Result<EngineFacts, compose::Error>) -> (Finding, bool) {
    const NAME: &str = "Docker engine";
    match facts {
        Ok(EngineFacts { version, api, cgroup, storage }) => {
            let found = format!("{version}, API {api}, cgroup v{cgroup}, storage driver {storage}");
            (Finding::works(NAME, found), true)
        }
        Err(error) => {
            let mend = match error {
                compose::Error::Forbidden { .. } => "sudo usermod -aG docker \"$USER\", then log in again",
                compose::Error::Engine { .. } => "sudo systemctl restart docker, or wait until the engine is less busy",
                _ => "sudo apt-get install docker.io, or start the engine: sudo systemctl start docker",
            };
            (Finding::fails(NAME, error.to_string(), mend), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_one_may_not_use_is_told_apart_from_a_missing_one() {
        let host = || "unix:///x".to_owned();
        let missing = compose::Error::NoEngine { host: host(), why: "No such file".into() };
        let silent = compose::Error::Engine { doing: "asking".into(), why: "nothing within 30 s".into() };
        let forbidden = compose::Error::Forbidden { host: host() };
        for (error, word) in [(forbidden, "usermod"), (missing, "apt-get install"), (silent, "restart docker")] {
            let (finding, works) = engine(Err(error));
            let Outcome::Fails { mend, .. } = finding.outcome else { panic!("{finding:?}") };
            assert!(mend.contains(word) && !works, "{mend}");
        }
    }
}
