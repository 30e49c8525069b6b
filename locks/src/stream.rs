//! Connections to servers: TCP, with or without TLS.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::servers::ServerAddress;

/// The timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time without an acknowledgement by the server's *kernel* after which a connection is dead. A frozen server keeps
/// its connection, because its kernel still acknowledges. The task never gives up a slow answer; the lock does, by its
/// own timeout.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);

/// A connection, with or without TLS.
pub(crate) type Stream = Box<dyn Connected>;

/// Bytes in both directions.
pub(crate) trait Connected: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connected for T {}

/// Connects to a server, by TLS if its access says so. `begin_tls` are the bytes by which a client of some protocols
/// asks for TLS; such a server answers `S`.
pub(crate) async fn connect(server: &ServerAddress, begin_tls: &[u8]) -> Result<Stream, String> {
    let mut stream = tcp(&server.address).await?;
    let Some(tls) = &server.access.tls else { return Ok(Box::new(stream)) };
    if !begin_tls.is_empty() {
        let failed = |error: std::io::Error| format!("asking for TLS: {error}");
        stream.write_all(begin_tls).await.map_err(failed)?;
        if stream.read_u8().await.map_err(failed)? != b'S' {
            return Err("the server does not offer TLS".into());
        }
    }
    let host = host(&server.address);
    let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("`{host}` is no name for TLS"))?;
    let stream = TlsConnector::from(Arc::new(tls.config()?)).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| format!("TLS: {error}"))?))
}

/// The host of `host:port`.
pub(crate) fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Connects. It sends nothing, so it can connect to a frozen server too.
pub(crate) async fn tcp(addr: &str) -> Result<TcpStream, String> {
    let stream = match time::timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
    };
    prepare(&stream).map_err(|error| error.to_string())?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    stream.set_nodelay(true)?;
    let unacknowledged_ms = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(setsockopt(stream, sockopt::TcpUserTimeout, &unacknowledged_ms)?)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{getsockopt, sockopt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::access::{Access, Tls};

    #[tokio::test]
    async fn a_server_without_tls_gets_nothing_but_the_question() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let access = Access { tls: Some(Tls::default()), ..Access::default() };
        let address = listener.local_addr().unwrap().to_string();
        let server = ServerAddress { access, ..ServerAddress::new("postgres-1", address) };
        let refusing = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(b"N").await.unwrap();
            (asked, stream.read_u8().await.is_err())
        };
        let connecting = async { connect(&server, b"TLS?").await.err() };
        let ((asked, is_closed), failed) = tokio::join!(refusing, connecting);
        assert_eq!(failed.as_deref(), Some("the server does not offer TLS"));
        assert_eq!((&asked, is_closed), (b"TLS?", true));
    }

    #[tokio::test]
    async fn a_connection_survives_a_cut_of_some_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = tcp(&listener.local_addr().unwrap().to_string()).await.unwrap();
        let unacknowledged_ms = getsockopt(&stream, sockopt::TcpUserTimeout).unwrap();
        assert!((10_000..60_000).contains(&unacknowledged_ms), "{unacknowledged_ms} ms");
    }
}
