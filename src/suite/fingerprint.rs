//! Fingerprints: of a case, and of the harness's own binary.

use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::Context;

use super::file::Case;

/// Returns the fingerprint of a case. Another version of the standard library may give another fingerprint; then the
/// case runs again.
pub fn fingerprint(case: &Case) -> anyhow::Result<String> {
    let mut hash = DefaultHasher::new();
    (case.file.to_toml()?, format!("{:?}{:?}{:?}", case.expectation, case.witnesses, case.causes)).hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}

/// Returns the fingerprint of this very binary. Another build may give other verdicts.
pub fn build() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("finding the harness's own binary")?;
    let binary = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut hash = DefaultHasher::new();
    binary.hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
}
