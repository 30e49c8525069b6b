//! The process `lock-server`: the server of the backends `memory` and `lock-manager`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

use crate::support::{harness, ran, run};

/// A server process, killed at the end.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(listen: &str) -> Server {
        let starting = harness().args(["lock-server", "--listen", listen]).stdout(Stdio::piped()).spawn();
        let mut child = starting.unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").expect("an address").to_owned();
        Server { child, address }
    }

    /// Sends these bytes on a connection of their own, and returns all that the server answers.
    fn answers(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    }

    fn is_answering(&self) -> bool {
        ran(&["lock-server", "--check", &self.address]).code == Some(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const ACQUIRE: &[u8] = b"{\"step\":{\"acquire\":[\"k0\",\"a\",60000]}}\n";

#[test]
fn garbage_gets_an_error_and_the_server_goes_on() {
    let server = Server::start("127.0.0.1:0");
    let mut garbage = b"\xff\xfe\0\nnull\n\n[[[[\nGET / HTTP/1.1\n".to_vec();
    garbage.extend(vec![b'['; 500_000]);
    garbage.extend(b"\n{\"step\":{\"acquire\":[\"k0\",\"a\",60000]}}\nno end of line");
    let said = server.answers(&garbage);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 7, "{said}");
    assert!(lines[..6].iter().all(|line| line.starts_with("{\"error\":")), "{said}");
    assert!(lines[5].contains("longer than 1024 bytes"), "{said}");
    assert_eq!(lines[6], "{\"answer\":{\"granted\":1}}");
    assert!(server.is_answering());
}

#[test]
fn a_killed_server_starts_again_without_locks_and_counters() {
    let mut server = Server::start("127.0.0.1:0");
    let address = server.address.clone();
    assert_eq!(server.answers(ACQUIRE), "{\"answer\":{\"granted\":1}}\n");
    assert_eq!(server.answers(ACQUIRE), "{\"answer\":\"refused\"}\n");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(!server.is_answering());
    let server = Server::start(&address);
    assert_eq!(server.answers(ACQUIRE), "{\"answer\":{\"granted\":1}}\n");
}

#[test]
fn too_many_connections_are_refused_with_the_reason() {
    let server = Server::start("127.0.0.1:0");
    let mut all: Vec<TcpStream> = (0..1_030).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let mut last = all.pop().unwrap();
    last.write_all(ACQUIRE).unwrap();
    let mut said = String::new();
    last.read_to_string(&mut said).unwrap();
    assert!(said.contains("1024 connections already"), "{said}");
    drop(all);
    while server.answers(ACQUIRE).contains("connections already") {}
}

#[test]
fn an_address_that_is_taken_is_named() {
    let server = Server::start("127.0.0.1:0");
    ran(&["lock-server", "--listen", &server.address]).exits(3).says(&["listening on", &server.address]);
}

#[test]
#[ignore = "needs a Docker engine"]
fn a_counter_in_memory_fences_a_holder_that_was_paused() {
    let expected = "lock=violated,lock.stale_holder>=1,lock.lease_overlap=0,lock.unexplained=0,\
        off.data.lost_updates>=1,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0";
    let flags = ["--backend", "memory", "--nemesis", "pause@before-write+6s", "--time", "10s", "--workers", "2"];
    run(&[&flags[..], &["--rate", "8", "--expect", expected]].concat()).exits(0);
}

#[test]
#[ignore = "needs a Docker engine"]
fn the_largest_counter_of_a_majority_goes_back() {
    let expected = "lock=upheld,tokens=violated,tokens.backwards>=1,writes.fence=violated,reads.fence=violated";
    run(&["suites/backends/lock-manager.toml", "--expect", expected]).exits(0);
}
