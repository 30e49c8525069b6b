//! Limits for clients.

use std::time::Duration;

/// The part of a too large request that is read and discarded. If the connection closed while the client still sends,
/// the client would get a reset instead of the answer.
pub(crate) const DISCARD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Limits for clients. Durations are measured by the process's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest body of a PUT, in bytes; a larger one gets 413.
    pub body_bytes_max: usize,
    /// The largest head of a request (its line and its headers), in bytes; a larger one gets 431.
    pub head_bytes_max: usize,
    /// From the first byte of a request to the end of its head; then 408.
    pub head_timeout: Duration,
    /// For the body of a PUT; then 408.
    pub body_timeout: Duration,
    /// For a client to read more of its answer; then the connection is closed.
    pub write_timeout: Duration,
    /// Between two requests on a connection. Longer than every pause of a client, so that a paused client keeps its
    /// connection.
    pub idle_timeout: Duration,
    /// The most open connections; one more gets 503 and is closed.
    pub connections_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes_max: 64 * 1024,
            head_bytes_max: 16 * 1024,
            head_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            connections_max: 1024,
        }
    }
}
