//! A backend stands in two tables: its servers in `compose`, its client in `locks`. The tables must agree.

use std::collections::BTreeMap;

use compose::{BUILTIN, ComposeFile};
use locks::CLIENTS;

#[test]
fn servers_and_clients_name_the_same_backends_and_token_sources() {
    let servers: BTreeMap<&str, Vec<String>> = BUILTIN
        .iter()
        .map(|(name, _)| {
            (*name, ComposeFile::builtin(name).unwrap().facts.tokens.iter().map(|t| t.to_string()).collect())
        })
        .collect();
    let clients: BTreeMap<&str, Vec<String>> = CLIENTS
        .iter()
        .map(|client| (client.name, client.tokens.iter().map(|source| source.name().to_owned()).collect()))
        .collect();
    assert_eq!(servers, clients, "the first source is the default: the order counts");
}
