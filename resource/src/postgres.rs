//! The resource over a Postgres server: the server decides, and this process writes the admission log.
//!
//! Requests are sent one after the other, each as one transaction ([`session::Session::decide`]). So the order of the
//! stamps is the order of the decisions:
//!
//! 1. [`Moment::Asked`] is told before the first statement leaves: the stamp of the decision, never too late.
//! 2. The conditional updates have run, and the transaction holds the locks of its rows. So the outcome is known, and
//!    no other transaction can change it: [`Moment::Decided`] writes the admission.
//! 3. The commit. The answer leaves when the server has acknowledged the commit, which is on its disk by then.
//!
//! A kill between 2 and 3 leaves an admission that never became durable, as with the resource's own store: the next
//! process reads the last number that was committed, and the checker undoes the admissions above this number. No
//! committed decision is ever missing in the log.
//!
//! # A lost connection
//!
//! Before 2 nothing was committed, and the request is asked again. After 2 the commit may have happened. The next
//! session ends the sessions before it, waits for their locks, and reads the last number. If the transaction was not
//! committed, it is sent again. No other client writes to these tables, so it must decide as before; the resource stops
//! if it does not.

mod session;

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use self::session::{Decided, Session};
use crate::admission::Admission;
use crate::asked::{Asked, Asker, Failure, Opened};
use crate::decide::{Refusal, check};
use crate::moment::{Moment, Observer, Undecided, WallClock, read_clock};
use crate::policy::Policy;
use crate::request::Request;
use crate::store::StoreError;

/// The time from a lost connection to the next try.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest time until the server of a new run answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens the tables of the server at `address` (`host:port`), and starts the task that asks it.
pub(crate) async fn open(
    address: String,
    policy: Policy,
    clock: WallClock,
    observer: Observer,
) -> Result<Opened, StoreError> {
    let until = Instant::now() + START_TIMEOUT;
    let failed = |what: String| StoreError::Postgres { address: address.clone(), what };
    let (session, durable) = loop {
        match Session::open(&address, &policy).await {
            Ok(opened) => break opened,
            Err(Failure::Lost(_)) if Instant::now() < until => sleep(RETRY_DELAY).await,
            Err(Failure::Lost(what) | Failure::Wrong(what)) => return Err(failed(what)),
        }
    };
    let (asker, requests) = Asker::new();
    let (ended, end) = oneshot::channel();
    let mut asking = Asking { address, policy, observer, clock, session: Some(session) };
    tokio::spawn(async move {
        // Nobody waits for the end after a shutdown.
        let _ = ended.send(asking.serve(requests).await);
    });
    Ok(Opened { asker, durable, end })
}

/// Asks the server.
struct Asking {
    address: String,
    policy: Policy,
    observer: Observer,
    clock: WallClock,
    session: Option<Session>,
}

impl Asking {
    async fn serve(&mut self, mut requests: mpsc::Receiver<Asked>) -> Result<(), StoreError> {
        while let Some(Asked { mut request, answer }) = requests.recv().await {
            let decided = match check(&self.policy, &request) {
                Err(refusal) => Err(Undecided::Refused(refusal)),
                Ok(()) if session::is_unstorable(&request) => Err(Undecided::Unstorable),
                Ok(()) => self.decide(&mut request).await?.map_err(Undecided::Refused),
            };
            // The client may be gone.
            let _ = answer.send(decided);
        }
        Ok(())
    }

    /// Asks until the server has decided.
    async fn decide(&mut self, request: &mut Request) -> Result<Result<Admission, Refusal>, StoreError> {
        let mut logged = None;
        loop {
            match self.ask(request, &mut logged).await {
                Ok(decided) => return Ok(decided),
                Err(Failure::Lost(why)) => {
                    tracing::warn!(why, "the connection to Postgres is lost");
                    self.session = None;
                    if logged.is_none() {
                        (self.observer)(Moment::Undecided);
                    }
                    sleep(RETRY_DELAY).await;
                }
                Err(Failure::Wrong(what)) => return Err(StoreError::Postgres { address: self.address.clone(), what }),
            }
        }
    }

    /// Asks once. `logged` is the decision that the admission log has, and that may be committed.
    async fn ask(
        &mut self,
        request: &mut Request,
        logged: &mut Option<Admission>,
    ) -> Result<Result<Admission, Refusal>, Failure> {
        if logged.is_none() {
            (self.observer)(Moment::Asked);
            // Each try is a decision of its own, by the time at which it leaves, until one may be committed.
            read_clock(self.clock, request);
        }
        let session = match &mut self.session {
            Some(session) => session,
            None => {
                let (session, last) = Session::reopen(&self.address, &self.policy).await?;
                if let Some(admission) = logged.take_if(|admission| last >= admission.number) {
                    self.session = Some(session);
                    return Ok(Ok(admission));
                }
                self.session.insert(session)
            }
        };
        match session.decide(&self.policy, request).await? {
            Decided::Before(former) if former.request.is_same(request) => {
                let admission = Admission { repeat: true, ..former.admission };
                (self.observer)(Moment::Decided(&admission));
                Ok(Ok(admission))
            }
            Decided::Before(former) => {
                (self.observer)(Moment::Undecided);
                let (hold, op) = (former.admission.hold.unwrap_or_default(), former.admission.op.unwrap_or_default());
                Ok(Err(Refusal::OpReused { hold, op }))
            }
            Decided::Now(admission) => {
                match logged {
                    Some(before) if *before != admission => {
                        let number = admission.number;
                        return Err(Failure::Wrong(format!("#{number} was decided again, and otherwise")));
                    }
                    Some(_) => {}
                    None => (self.observer)(Moment::Decided(&admission)),
                }
                *logged = Some(admission.clone());
                session.commit().await?;
                Ok(Ok(admission))
            }
        }
    }
}
