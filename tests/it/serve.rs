//! `harness serve`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
};

use crate::support::{harness, ran};

#[test]
fn runs_are_served_until_ctrl_c_even_while_a_client_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().to_str().unwrap();
    ran(&["run", "--cluster", "sim", "--backend", "redis", "--time", "2s", "--runs", runs]);
    let mut child =
        harness().args(["serve", "--runs", runs, "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_start_matches("http://").split('/').next().unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    write!(client, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    client.read_to_string(&mut page).unwrap();
    let run = dir.path().join("latest").canonicalize().unwrap();
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains(run.file_name().unwrap().to_str().unwrap()), "{page}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_missing_directory_and_a_used_address_are_named() {
    let refused = ran(&["serve", "--runs", "/no/such"]).exits(64);
    assert!(refused.stderr.contains("--runs /no/such"), "{}", refused.stderr);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = ran(&["serve", "--runs", ".", "--listen", &address]).exits(3);
    assert!(refused.stderr.contains(&address), "{}", refused.stderr);
}
