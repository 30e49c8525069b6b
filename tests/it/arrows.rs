//! Who may depend on whom (docs/architecture.md): anything else fails here.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Every member, and the members that it may use.
const ARROWS: [(&str, &[&str]); 11] = [
    ("agent", &["lock-history"]),
    ("lock-history", &[]),
    ("linearizability", &[]),
    ("locks", &[]),
    ("resource", &["lock-history"]),
    ("lock-checker", &["lock-history"]),
    ("nemesis", &["lock-history"]),
    ("workloads", &["lock-history", "locks", "resource"]),
    ("compose", &["agent", "lock-history", "nemesis"]),
    ("sim", &["lock-history", "locks", "resource", "workloads", "nemesis"]),
    (
        "harness",
        &[
            "agent",
            "lock-history",
            "linearizability",
            "locks",
            "resource",
            "lock-checker",
            "nemesis",
            "workloads",
            "compose",
            "sim",
        ],
    ),
];

#[test]
fn no_crate_depends_on_another_against_the_arrows() {
    let metadata = MetadataCommand::new().no_deps().other_options(["--offline".into()]).exec().unwrap();
    let members: BTreeSet<_> = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    let allowed: BTreeMap<_, _> = ARROWS.into_iter().collect();
    assert_eq!(members, allowed.keys().map(|n| (*n).to_owned()).collect(), "every member stands in the table");
    for package in &metadata.packages {
        let allowed = allowed[package.name.as_str()];
        for dependency in package.dependencies.iter().filter(|d| members.contains(&d.name)) {
            // Build and ordinary dependencies alike; a test may use what its crate may use, and no more.
            let kind = match dependency.kind {
                DependencyKind::Development => "in its tests",
                _ => "",
            };
            let name = &dependency.name;
            assert!(allowed.contains(&name.as_str()), "{} must not depend on {name} {kind}", package.name);
        }
    }
}
