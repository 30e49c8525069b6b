//! Fingerprints: of a case, and of the harness's own binary.

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::file::Case;

/// Returns the fingerprint of a case: of its plan and of what it expects.
pub fn fingerprint(case: &Case) -> anyhow::Result<String> {
    let expected = format!("{:?}{:?}{:?}", case.expectation, case.witnesses, case.causes);
    Ok(short(Sha256::new().chain_update(case.file.to_toml()?).chain_update([0]).chain_update(expected)))
}

/// Returns the fingerprint of this very binary. Another build may give other verdicts.
pub fn build() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("finding the harness's own binary")?;
    let binary = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(short(Sha256::new().chain_update(binary)))
}

/// The first 16 hexadecimal digits of a digest.
fn short(digest: Sha256) -> String {
    let mut digits = format!("{:x}", digest.finalize());
    digits.truncate(16);
    digits
}
