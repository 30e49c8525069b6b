//! An unmodified Redis, whose clock is moved.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::Child,
};

use agent::clock::Clocks;
use history::{ClockChange::JumpMs, WhichClock};

use super::{SECOND, child::kernel_ns, redis_binary::redis_server, say::left_out, vdso::vdso};

/// A server of this test's own.
struct Server {
    child: Child,
    connection: BufReader<TcpStream>,
}

impl Server {
    /// Starts one, or says loudly that there is none to start.
    fn start() -> Option<Server> {
        let Some(mut command) = redis_server() else {
            assert!(std::env::var_os("CI").is_none(), "no redis-server on the path (scripts/setup installs one)");
            left_out("no redis-server on the path, none was moved");
            return None;
        };
        loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
            let mut child = command.spawn().unwrap();
            while child.try_wait().unwrap().is_none() {
                if let Ok(connection) = TcpStream::connect(("127.0.0.1", port)) {
                    return Some(Server { child, connection: BufReader::new(connection) });
                }
                std::thread::yield_now();
            }
        }
    }

    /// One command, and the lines of its answer that are not lengths.
    fn ask<const LINES: usize>(&mut self, command: &str) -> [String; LINES] {
        write!(self.connection.get_mut(), "{command}\r\n").unwrap();
        std::array::from_fn(|_| {
            loop {
                let mut line = String::new();
                assert_ne!(self.connection.read_line(&mut line).unwrap(), 0, "the server has ended");
                let line = line.trim_end();
                if line == "$-1" || !line.starts_with(['$', '*']) {
                    return line.to_owned();
                }
            }
        })
    }

    /// How far its `TIME` is ahead of the kernel's, as far as that can be told: at least, and at most.
    fn ahead_ns(&mut self) -> (i64, i64) {
        let before = kernel_ns(libc::CLOCK_REALTIME);
        let [seconds, micros] = self.ask("TIME").map(|number| number.parse::<i64>().unwrap());
        let after = kernel_ns(libc::CLOCK_REALTIME);
        let shown = seconds * SECOND + micros * 1_000;
        (shown - after, shown + 1_000 - before)
    }

    fn assert_ahead(&mut self, by_ns: i64) {
        let (least, most) = self.ahead_ns();
        assert!(least <= by_ns && by_ns <= most, "expected {by_ns} ns, TIME says {least} to {most}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_jump_of_an_unmodified_redis_shows_in_its_time_and_ends_its_keys() {
    let Some(mut server) = Server::start() else { return };
    let pid = server.child.id() as i32;
    let original = vdso(pid);
    let mut clocks = Clocks::of(pid).unwrap();
    server.assert_ahead(0);
    assert_eq!(server.ask("SET short 1 PX 10000"), ["+OK"]);
    assert_eq!(server.ask("SET long 1 PX 60000"), ["+OK"]);

    clocks.change(WhichClock::Wall, JumpMs(20_000)).unwrap();
    server.assert_ahead(20 * SECOND);
    assert_eq!(server.ask("GET short"), ["$-1"], "10 s to live, and 20 s have passed at once");
    assert_eq!(server.ask("GET long"), ["1"]);

    // Set by the wrong clock, and looked at by the right one: it lives longer than it should.
    assert_eq!(server.ask("SET wrong 1 PX 10000"), ["+OK"]);
    clocks.heal().unwrap();
    server.assert_ahead(0);
    let [left] = server.ask("PTTL wrong");
    let left_ms: i64 = left.strip_prefix(':').unwrap().parse().unwrap();
    assert!((25_000..=30_000).contains(&left_ms), "{left_ms}");
    assert_eq!(vdso(pid), original);
}
