//! Waiting for an answer with a timeout by a client's own clock.

use std::{
    error::Error,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use crate::ports::{Clock, NodeError, Reply};

/// The time for which a client still reads after its timer has fired. A process that was frozen wakes up with the
/// answer *and* the timer due, and the answer must pass through the connection's task before the client can read it.
const GRACE: Duration = Duration::from_millis(2);

/// Waits for the answer, for at most `timeout` from now on; returns none if the answer does not come. An answer that
/// has arrived comes before the timer: after a freeze both are due.
pub(crate) async fn within<F: Future + Unpin>(
    clock: &dyn Clock,
    timeout: Duration,
    reply: &mut F,
) -> Option<F::Output> {
    let mut timer = clock.sleep_until(clock.now().saturating_add(timeout));
    let mut has_grace = false;
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut *reply).poll(cx) {
                return Poll::Ready(Some(answer));
            }
            match timer.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if has_grace => return Poll::Ready(None),
                Poll::Ready(()) => {
                    has_grace = true;
                    timer = clock.sleep_until(clock.now().saturating_add(GRACE));
                }
            }
        }
    })
    .await
}

/// An error and its causes, from the outermost to the innermost.
pub(crate) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// Runs a request in a task of its own: the request leaves now, and goes on if its reply is dropped.
///
/// # Panics
/// Outside of a Tokio runtime.
pub(crate) fn spawned<T: Send + 'static>(
    request: impl Future<Output = Result<T, NodeError>> + Send + 'static,
) -> Reply<Result<T, NodeError>> {
    let asked = tokio::spawn(request);
    Box::pin(async move {
        asked.await.unwrap_or_else(|ended| Err(NodeError::Indeterminate(format!("the request's task: {ended}"))))
    })
}
