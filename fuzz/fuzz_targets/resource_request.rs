//! Bytes that a client sends to the resource over one connection. Afterwards the resource still answers others.

#![no_main]

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::LazyLock,
    time::Duration,
};

use history::{Arm, Comparison};
use libfuzzer_sys::fuzz_target;
use resource::{Config, Limits, Policy, Resource};

static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory");
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
            tell.send(listener.local_addr().expect("an address")).expect("somebody listens");
            let policy = Policy::new(&Arm::ALL, Comparison::default()).expect("a possible policy");
            let (store, limits) = (dir.path().join("store"), Limits::default());
            let config = Config { policy, store, limits, clock: || Duration::ZERO };
            let resource = Resource::open(config, Box::new(|_| {})).expect("it opens");
            resource.serve(listener, std::future::pending()).await.expect("it serves for ever");
        });
    });
    told.recv().expect("the server is up")
});

/// Sends the bytes, and returns the answer. `ends`: no more bytes will follow, which a resource may take for a client
/// that is gone.
fn exchange(bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(*SERVER).expect("the resource takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    // The resource may refuse the rest of a request that it has answered.
    let _ = stream.write_all(bytes);
    if ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fuzz_target!(|bytes: &[u8]| {
    let answer = exchange(bytes, true);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", String::from_utf8_lossy(&answer));
    let health = exchange(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", false);
    assert!(health.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&health));
});
