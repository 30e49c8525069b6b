//! The streams on which leases of etcd are kept alive.
//!
//! etcd takes keep-alives on a stream. A client that opened a stream for each keep-alive would send two requests for
//! one: the client library sends the first by itself, and its answer, which the library reads, says only that the lease
//! exists. So a stream stays open for the next keep-alive of its lease.

use std::collections::VecDeque;

use etcd_client::{Client, Error, LeaseKeepAliveStream, LeaseKeeper};
use parking_lot::Mutex;

use crate::ports::LeaseId;

/// The most streams that stay open. A client that forgets a lease without revoking it leaves a stream behind.
const STREAMS_MAX: usize = 64;

/// A lease, and the number of the member that keeps it alive.
type Of = (LeaseId, usize);

/// An open stream without an unanswered request.
struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Stream {
    /// Sends one keep-alive. Returns the seconds for which the lease runs now; 0 if there is no such lease.
    async fn keep_alive(&mut self) -> Result<i64, Error> {
        self.keeper.keep_alive().await?;
        let answer = self.answers.message().await?;
        let answer = answer.ok_or_else(|| Error::LeaseKeepAliveError("the stream has ended".to_owned()))?;
        Ok(answer.ttl())
    }
}

/// The open streams of a client, the one that was used last at the end.
#[derive(Default)]
pub(crate) struct Keepers(Mutex<VecDeque<(Of, Stream)>>);

impl Keepers {
    /// Keeps a lease alive by one member. Returns the seconds for which the lease runs now; 0 if there is none.
    ///
    /// # Errors
    /// The member gave no answer. It may have kept the lease alive all the same.
    pub async fn keep_alive(&self, of: Of, client: &mut Client) -> Result<i64, Error> {
        // A stream is not in the list while its request is unanswered: nobody else reads the answer to it.
        if let Some(mut stream) = self.take(of) {
            // If this fails, the member may have been restarted since the stream was opened.
            if let Ok(left) = stream.keep_alive().await {
                return Ok(self.kept(of, stream, left));
            }
        }
        let (keeper, answers) = match client.lease_keep_alive(of.0.0).await {
            Err(Error::LeaseKeepAliveError(_)) => return Ok(0),
            other => other?,
        };
        let mut stream = Stream { keeper, answers };
        let left = stream.keep_alive().await?;
        Ok(self.kept(of, stream, left))
    }

    /// Closes the streams of a lease.
    pub fn close(&self, lease: LeaseId) {
        self.0.lock().retain(|((of, _), _)| *of != lease);
    }

    fn take(&self, of: Of) -> Option<Stream> {
        let mut streams = self.0.lock();
        let found = streams.iter().position(|(known, _)| *known == of)?;
        streams.remove(found).map(|(_, stream)| stream)
    }

    fn kept(&self, of: Of, stream: Stream, left: i64) -> i64 {
        let mut streams = self.0.lock();
        if left > 0 {
            streams.push_back((of, stream));
        }
        if streams.len() > STREAMS_MAX {
            streams.pop_front();
        }
        left
    }
}
