//! The parts that tests of all real servers share.

use std::{net::TcpListener, time::Duration};

/// For how long a test may wait for something that must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A port that is free now. Another process may take it.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
