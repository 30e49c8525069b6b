//! Leaves a marker key on a Redis server, and takes it away.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddrV4, TcpStream},
    time::Duration,
};

use super::error::NetError;
use crate::protocol::MarkerStep;

/// Sets `key` on `server`, or removes it, over the network of the agent. Returns whether the key was there after it was
/// set, or before it was removed.
///
/// # Errors
///
/// No Redis server carries out the command within `timeout`, for example because it wants a password.
pub fn redis_marker(server: SocketAddrV4, key: &str, step: MarkerStep, timeout: Duration) -> Result<bool, NetError> {
    ask(server, key, step, timeout).map_err(|source| NetError::Marker { server, source })
}

fn ask(server: SocketAddrV4, key: &str, step: MarkerStep, timeout: Duration) -> std::io::Result<bool> {
    let connection = TcpStream::connect_timeout(&server.into(), timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    let words: &[&str] = match step {
        MarkerStep::Leave => &["SET", key, "1"],
        MarkerStep::Take => &["DEL", key],
    };
    let command: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    (&connection).write_all(format!("*{}\r\n{command}", words.len()).as_bytes())?;
    is_there(BufReader::new(&connection), step)
}

fn is_there(mut answer: impl BufRead, step: MarkerStep) -> std::io::Result<bool> {
    let mut line = String::new();
    answer.read_line(&mut line)?;
    match (step, line.trim_end()) {
        (MarkerStep::Leave, "+OK") | (MarkerStep::Take, ":1") => Ok(true),
        (MarkerStep::Take, ":0") => Ok(false),
        (_, other) => Err(std::io::Error::other(format!("the server answered `{other}`"))),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, TcpListener},
        thread,
    };

    use super::*;

    /// Answers one command on each of `connections` connections, as a Redis server that has no keys at first.
    fn serve(listener: &TcpListener, connections: usize) {
        let mut is_set = false;
        for connection in listener.incoming().take(connections) {
            let connection = connection.unwrap();
            let mut lines = BufReader::new(&connection).lines().map(Result::unwrap);
            let count: usize = lines.next().unwrap()[1..].parse().unwrap();
            // Before each word comes a line with its length.
            let words: Vec<String> = lines.take(2 * count).skip(1).step_by(2).collect();
            let answer = match words.join(" ").as_str() {
                "SET marker 1" => {
                    is_set = true;
                    "+OK\r\n"
                }
                "DEL marker" if std::mem::take(&mut is_set) => ":1\r\n",
                "DEL marker" => ":0\r\n",
                _ => "-ERR unknown command\r\n",
            };
            (&connection).write_all(answer.as_bytes()).unwrap();
        }
    }

    #[test]
    fn a_marker_that_was_taken_is_gone() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
        let serving = thread::spawn(move || serve(&listener, 4));
        let (leave, take) = (MarkerStep::Leave, MarkerStep::Take);
        let steps = [take, leave, take, take];
        let was_there = steps.map(|step| redis_marker(server, "marker", step, Duration::from_secs(5)).ok());
        serving.join().unwrap();
        assert_eq!(was_there, [Some(false), Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn a_refusal_is_neither_a_marker_nor_none() {
        let taken = |answer: &str| is_there(answer.as_bytes(), MarkerStep::Take).ok();
        assert_eq!((taken(":1\r\n"), taken(":0\r\n")), (Some(true), Some(false)));
        assert_eq!(is_there(&b"+OK\r\n"[..], MarkerStep::Leave).ok(), Some(true));
        for refusal in ["", "-NOAUTH Authentication required.\r\n", "-LOADING Redis is loading\r\n"] {
            for step in [MarkerStep::Leave, MarkerStep::Take] {
                assert!(is_there(refusal.as_bytes(), step).is_err(), "{refusal}");
            }
        }
    }
}
