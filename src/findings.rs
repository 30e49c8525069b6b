//! `harness findings`: writes the pages of the findings from templates and recorded runs.
//!
//! A page takes each figure from the data, so no figure is typed by hand: a template that contains one is refused.

mod data;
mod filters;
mod matrix;
mod page;
mod picture;
mod tokens;
mod typed;
mod wrap;

use std::{collections::BTreeMap, path::Path};

use anyhow::Context;

use crate::{
    cli::FindingsArgs,
    dose::svg,
    exit::{Exit, Unusable},
    report::print,
};

use self::data::Data;

/// `harness findings`
pub fn findings(args: &FindingsArgs) -> anyhow::Result<Exit> {
    let data = Data::read(&args.dir.join("data"), &args.suite)?;
    let mut files = page::render(&args.dir.join("pages"), data.clone())?;
    for series in data.doses() {
        files.insert(format!("dose-{}-{}.svg", series.of, series.cluster), svg(series)?);
    }
    for picture in data.pictures() {
        files.insert(picture.file_name(), picture.svg.clone());
    }
    if args.check { check(&args.dir, &files) } else { write(&args.dir, &files) }
}

fn write(dir: &Path, files: &BTreeMap<String, String>) -> anyhow::Result<Exit> {
    for (name, text) in files {
        let path = dir.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == *text) {
            continue;
        }
        // The file is renamed when it is whole, so that a full disk loses no page.
        let beside = dir.join(format!(".{name}-{}", std::process::id()));
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &path));
        if written.is_err() {
            // The error says what is wrong; a file that was never made cannot be removed.
            let _ = std::fs::remove_file(&beside);
        }
        written.with_context(|| format!("writing {}", path.display()))?;
        print(&format!("wrote {}\n", path.display()))?;
    }
    Ok(Exit::Ok)
}

/// Compares each file with the file that would be written.
fn check(dir: &Path, files: &BTreeMap<String, String>) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    for (name, text) in files {
        let path = dir.join(name);
        let present = match std::fs::read_to_string(&path) {
            Ok(present) => present,
            Err(e) => return Err(Unusable(format!("{}: {e}; `harness findings` writes it", path.display())).into()),
        };
        if present != *text {
            let same = present.lines().zip(text.lines()).take_while(|(one, other)| one == other).count();
            let mend = "edit the template or the data, and run `harness findings`";
            print(&format!("{}, line {}: differs from its template and data; {mend}\n", path.display(), same + 1))?;
            exit = Exit::Violated;
        }
    }
    Ok(exit)
}
