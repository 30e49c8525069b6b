//! Fingerprints: of data that determines a result, and of the harness's own binary.

use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};

/// Returns the fingerprint of texts: 16 hexadecimal digits. The texts are kept apart.
pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for (n, text) in texts.into_iter().enumerate() {
        // No text contains this byte.
        digest.update(if n > 0 { "\0" } else { "" });
        digest.update(text);
    }
    short(digest)
}

/// The binary that runs, also if its file was replaced or removed since (proc(5)).
pub const OWN_BINARY: &str = "/proc/self/exe";

/// Returns the fingerprint of this very binary. Another build may give other verdicts.
pub fn build() -> anyhow::Result<String> {
    of_file(Path::new(OWN_BINARY)).context("reading the harness's own binary")
}

fn of_file(path: &Path) -> std::io::Result<String> {
    Ok(short(Sha256::new().chain_update(std::fs::read(path)?)))
}

fn short(digest: Sha256) -> String {
    let mut digits = format!("{:x}", digest.finalize());
    digits.truncate(16);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_apart() {
        assert_eq!(of(["ab", "c"]).len(), 16);
        assert_ne!(of(["ab", "c"]), of(["a", "bc"]));
    }

    #[test]
    fn files_that_differ_in_their_last_byte_have_different_fingerprints() {
        let dir = tempfile::tempdir().unwrap();
        let [one, same, other] = [("one", 1), ("same", 1), ("other", 2)].map(|(name, last)| {
            let path = dir.path().join(name);
            std::fs::write(&path, [vec![7_u8; 1 << 16], vec![last]].concat()).unwrap();
            of_file(&path).unwrap()
        });
        assert!(one == same && one != other, "{one} {other}");
    }
}
