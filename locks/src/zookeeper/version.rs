//! The version of a server.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};

use crate::ports::NodeError;

/// The time that a server may take to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(1);

/// The version that the server at `addr` (`host:port`) gives, such as `3.8.0`.
pub(super) async fn server_version(addr: &str) -> Result<String, NodeError> {
    let asking = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(b"srvr").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let failed = |why: String| NodeError::Definite(format!("{addr}: {why}"));
    let text = time::timeout(VERSION_TIMEOUT, asking).await;
    let text = text.map_err(|_| failed(format!("no answer within {VERSION_TIMEOUT:?}")))?;
    let text = text.map_err(|error| failed(error.to_string()))?;
    version(&text).ok_or_else(|| failed(format!("no version in the answer to `srvr`: {text:?}")))
}

/// The number in a line such as `Zookeeper version: 3.8.0-5a02a05, built on …`.
pub(super) fn version(srvr: &str) -> Option<String> {
    let rest = srvr.strip_prefix("Zookeeper version: ")?;
    let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    (!number.is_empty()).then(|| number.to_owned())
}
