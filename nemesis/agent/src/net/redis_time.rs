//! Asks a Redis server for the time.

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::Duration,
};

use super::{error::NetError, namespace::Namespace};
use crate::{protocol::ReportedAhead, stamp::read_ns};

/// `TIME` has whole microseconds: the server's clock may be ahead by this much more.
const EXACT_TO_NS: i64 = 1_000;

/// Asks the Redis server on `port` of loopback, in the network namespace of process `pid`, for its `TIME`, between two
/// readings of the kernel's `CLOCK_REALTIME` by the raw system call.
///
/// # Errors
///
/// The process does not exist, or no Redis server answers within `timeout`.
pub fn redis_time(pid: i32, port: u16, timeout: Duration) -> Result<ReportedAhead, NetError> {
    Namespace::of(pid)?
        .enter(|| ask(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), timeout))?
        .map_err(|source| NetError::Time { pid, port, source })
}

fn ask(server: SocketAddrV4, timeout: Duration) -> std::io::Result<ReportedAhead> {
    let connection = TcpStream::connect_timeout(&server.into(), timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    let before_ns = read_ns(libc::CLOCK_REALTIME);
    (&connection).write_all(b"*1\r\n$4\r\nTIME\r\n")?;
    let shown_ns = shown_ns(BufReader::new(&connection))?;
    let after_ns = read_ns(libc::CLOCK_REALTIME);
    Ok(ReportedAhead { least_ns: shown_ns - after_ns, most_ns: shown_ns + EXACT_TO_NS - before_ns })
}

/// Parses the answer, an array of seconds and microseconds since 1970 as text, into nanoseconds.
fn shown_ns(mut answer: impl BufRead) -> std::io::Result<i64> {
    let mut line = || {
        let mut line = String::new();
        answer.read_line(&mut line).map(|_| line.trim_end().to_owned())
    };
    let unlike = |line: String| std::io::Error::other(format!("`{line}` is no answer to TIME"));
    let is_array = line()?;
    if is_array != "*2" {
        return Err(unlike(is_array));
    }
    let mut number = || {
        let _length = line()?;
        let text = line()?;
        text.parse::<i64>().map_err(|_| unlike(text))
    };
    let (seconds, micros) = (number()?, number()?);
    let shown = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(micros.checked_mul(1_000)?));
    shown.ok_or_else(|| unlike(format!("{seconds} s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_nothing_else_is_one() {
        assert_eq!(shown_ns(&b"*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n"[..]).unwrap(), 1_700_000_000_123_456_000);
        for wrong in [
            "",
            "-NOAUTH Authentication required.\r\n",
            "*2\r\n$1\r\nx\r\n$1\r\n1\r\n",
            "*2\r\n$19\r\n9223372036854775807\r\n$1\r\n0\r\n",
        ] {
            assert!(shown_ns(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
