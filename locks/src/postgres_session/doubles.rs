//! A server that says what a test lets it say, and a clock that stands still.

use std::{collections::BTreeMap, future::pending, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::ports::{Clock, Reply};

/// Longer than a busy machine needs for some requests.
pub const LEASE: Duration = Duration::from_secs(8);
/// The first bytes of a request to cancel a statement
/// (<https://www.postgresql.org/docs/15/protocol-message-formats.html>, CancelRequest).
const CANCEL: [u8; 4] = [4, 210, 22, 46];
/// The time that the server needs for such a request.
const CANCELLING: Duration = Duration::from_millis(50);

/// The description of one column `n` of the type `int8`, in binary (RowDescription, same page).
const COLUMN: &[u8] = b"\0\x01n\0\0\0\0\0\0\0\0\0\0\x14\0\x08\xff\xff\xff\xff\0\x01";

/// An unusual answer of the server.
#[derive(Clone, Copy)]
pub enum Says {
    /// This number, in place of 1.
    Number(i64),
    /// Another session has locked the row. The next answer is the usual one.
    LockedOnce,
    /// No row.
    Nothing,
    /// An error that shows the user.
    Error,
    /// An error of a statement, with this code.
    Code(&'static str),
    /// An error as the last words of a session.
    Fatal,
    /// The connection is closed.
    Closes,
    /// No answer, now and later.
    Silence,
}

/// A server that answers every statement with the number 1, unless told otherwise.
pub struct Scripted {
    pub address: String,
    pub answers: Mutex<BTreeMap<&'static str, Says>>,
    /// The first message of each session, with its settings.
    pub begun: Mutex<Vec<String>>,
    /// The logins, the statements, and the requests to cancel a statement.
    pub asked: Mutex<Vec<String>>,
    /// Notified when a client closes a session.
    pub closed: Notify,
}

/// A message of the server: its kind, its length and its body.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).unwrap();
    [&[kind][..], &len.to_be_bytes(), body].concat()
}

fn ready_for_query() -> Vec<u8> {
    message(b'Z', b"I")
}

/// The answer to a login.
fn session() -> Vec<u8> {
    [message(b'R', &[0; 4]), message(b'K', &[0; 8]), ready_for_query()].concat()
}

/// The answer to a statement without rows of its own.
fn done() -> Vec<u8> {
    [message(b'C', b"DONE\0"), ready_for_query()].concat()
}

/// The answer to a statement with a parameter: the numbers of one column.
fn rows(numbers: &[i64]) -> Vec<u8> {
    let row = |number: &i64| message(b'D', &[&[0_u8, 1, 0, 0, 0, 8][..], &number.to_be_bytes()].concat());
    let rows: Vec<u8> = numbers.iter().flat_map(row).collect();
    [message(b'1', b""), message(b'2', b""), message(b'T', COLUMN), rows, done()].concat()
}

fn error(severity: &str) -> Vec<u8> {
    coded_error(severity, "53300", "too many connections for role \"alice\"")
}

fn coded_error(severity: &str, code: &str, said: &str) -> Vec<u8> {
    message(b'E', format!("S{severity}\0V{severity}\0C{code}\0M{said}\0\0").as_bytes())
}

/// Reads a length and the bytes that follow.
async fn body(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let len = stream.read_u32().await?;
    let mut body = vec![0; len as usize - 4];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

impl Scripted {
    pub async fn start() -> Arc<Scripted> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (answers, begun, asked) = (Mutex::default(), Mutex::default(), Mutex::default());
        let scripted = Arc::new(Scripted { address, answers, begun, asked, closed: Notify::new() });
        let server = scripted.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(server.clone().serve(stream));
            }
        });
        scripted
    }

    pub fn says(&self, asked: &'static str, answer: Says) {
        self.answers.lock().insert(asked, answer);
    }

    pub fn logins(&self) -> usize {
        self.asked.lock().iter().filter(|asked| *asked == "login").count()
    }

    /// Serves a connection until it is closed, which is an error.
    async fn serve(self: Arc<Self>, mut stream: TcpStream) -> io::Result<()> {
        let begins = body(&mut stream).await?;
        if begins.starts_with(&CANCEL) {
            tokio::time::sleep(CANCELLING).await;
            self.asked.lock().push("cancel".to_owned());
            return Ok(());
        }
        self.begun.lock().push(String::from_utf8_lossy(&begins).into_owned());
        self.answer(&mut stream, "login", session()).await?;
        let mut parsed = String::new();
        loop {
            let kind = stream.read_u8().await?;
            let body = body(&mut stream).await?;
            let text = |place| {
                let text = body.split(|byte| *byte == 0).nth(place).unwrap_or_default();
                String::from_utf8_lossy(text).into_owned()
            };
            match kind {
                b'Q' => self.answer(&mut stream, &text(0), done()).await?,
                // The name of the prepared statement comes first.
                b'P' => parsed = text(1),
                b'S' => self.answer(&mut stream, &parsed, rows(&[1])).await?,
                b'X' => self.closed.notify_one(),
                _ => {}
            }
        }
    }

    async fn answer(&self, stream: &mut TcpStream, asked: &str, usual: Vec<u8>) -> io::Result<()> {
        self.asked.lock().push(asked.to_owned());
        let says = self.answers.lock().get(asked).copied();
        let answer = match says {
            None => usual,
            Some(Says::Number(number)) => rows(&[number]),
            Some(Says::LockedOnce) => {
                self.answers.lock().remove(asked);
                let refused = coded_error("ERROR", "55P03", "could not obtain lock on row");
                [refused, ready_for_query()].concat()
            }
            Some(Says::Nothing) => rows(&[]),
            Some(Says::Error) => [error("ERROR"), ready_for_query()].concat(),
            Some(Says::Code(code)) => [coded_error("ERROR", code, "no"), ready_for_query()].concat(),
            Some(Says::Fatal) => {
                stream.write_all(&error("FATAL")).await?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Some(Says::Closes) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Some(Says::Silence) => return pending().await,
        };
        stream.write_all(&answer).await
    }
}

/// A clock that never advances.
pub struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn sleep_until(&self, _at: Duration) -> Reply<()> {
        Box::pin(pending())
    }
}
