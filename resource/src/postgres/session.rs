//! One session with the server: the tables, and the transaction that decides a request.
//!
//! Numbers are `numeric`, and travel as text, because Postgres has no unsigned integers of 64 bits.

use std::collections::BTreeMap;
use std::time::Duration;

use history::{Arm, Comparison, HoldId, OpId, Token, Version};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use crate::admission::{Admission, ArmOutcome};
use crate::asked::Failure;
use crate::decide::{DecidedOperation, RESTART_JUMP};
use crate::policy::Policy;
use crate::request::{Action, Proposal, Request};

/// The user and the database.
const USER: &str = "postgres";
/// The name by which a session finds the sessions of the process before it.
const NAME: &str = "harness-resource";
/// The longest time for a connection to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates the tables. `harness_number` has one row: `last` is the number after which the next decision comes, and
/// `decided` is the number of the last decision.
const CREATE: &str = "\
BEGIN;
CREATE TABLE harness_number (last numeric(20) NOT NULL, decided numeric(20) NOT NULL, policy text NOT NULL);
CREATE TABLE harness_resource (key text, arm text, value text, version numeric(20) NOT NULL DEFAULT 0,
    fence numeric(20), owner numeric(20), claim numeric(20), PRIMARY KEY (key, arm));
CREATE TABLE harness_operation (hold numeric(20), op numeric(20), decided text NOT NULL, PRIMARY KEY (hold, op));
COMMIT";

const IS_CREATED: &str = "SELECT to_regclass('harness_number') IS NOT NULL";

/// $1: policy.
const FIRST: &str = "INSERT INTO harness_number VALUES (0, 0, $1)";

/// Ends the sessions of earlier processes, so that nothing that they have sent is applied later.
const END_OTHERS: &str = "\
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()";

/// Waits for the transaction that changes the number, if there is one.
const LAST: &str = "SELECT decided::text, policy FROM harness_number FOR UPDATE";

/// $1: distance. A process whose store existed jumps, also if no decision was committed: the process before it may have
/// logged its first decision.
const JUMP: &str = "UPDATE harness_number SET last = last + $1::text::numeric";

/// The first statement of each transaction. Its row lock keeps transactions apart.
const NUMBER: &str = "UPDATE harness_number SET last = last + 1, decided = last + 1 RETURNING last::text";

/// $1: hold. $2: operation.
const FORMER: &str = "\
SELECT decided FROM harness_operation WHERE hold = $1::text::numeric AND op = $2::text::numeric";

/// $1: hold. $2: operation. $3: request and decision.
const KEEP: &str = "INSERT INTO harness_operation VALUES ($1::text::numeric, $2::text::numeric, $3)";

/// $1: key. $2: arms.
const ROWS: &str = "INSERT INTO harness_resource (key, arm) SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING";

/// $1: key.
const STATE: &str = "SELECT arm, value, version::text, fence::text FROM harness_resource WHERE key = $1 FOR UPDATE";

/// $1: key. $2: token. $3: hold. An equal token of another hold registers nothing.
const READ_ON_READS: &str = "\
UPDATE harness_resource SET fence = $2::text::numeric, owner = $3::text::numeric
WHERE key = $1 AND arm = 'reads' AND (fence IS NULL OR fence < $2::text::numeric)
RETURNING fence::text";

/// $1: key. $2: hold.
const READ_ON_CLAIM: &str = "\
UPDATE harness_resource SET claim = $2::text::numeric WHERE key = $1 AND arm = 'claim'";

/// $1: key. $2: number. $3: value.
const WRITE_ON_OFF: &str = "\
UPDATE harness_resource SET version = $2::text::numeric, value = $3 WHERE key = $1 AND arm = 'off'
RETURNING value, version::text";

/// $1: key. $2: number. $3: value. $4: arm. $5: token. $6: hold. The token must not be smaller, and an equal token must
/// be of the hold that first registered the token.
const WRITE_WITH_TOKEN: &str = "\
UPDATE harness_resource
SET version = $2::text::numeric, value = $3, fence = $5::text::numeric, owner = $6::text::numeric
WHERE key = $1 AND arm = $4 AND (fence IS NULL OR fence <= $5::text::numeric
    AND (fence < $5::text::numeric OR owner IS NOT DISTINCT FROM $6::text::numeric))
RETURNING value, version::text";

/// The same under the strict comparison.
const WRITE_WITH_NEW_TOKEN: &str = "\
UPDATE harness_resource
SET version = $2::text::numeric, value = $3, fence = $5::text::numeric, owner = $6::text::numeric
WHERE key = $1 AND arm = $4 AND (fence IS NULL OR fence < $5::text::numeric)
RETURNING value, version::text";

/// $1: key. $2: number. $3: value. $4: base.
const WRITE_ON_CAS: &str = "\
UPDATE harness_resource SET version = $2::text::numeric, value = $3
WHERE key = $1 AND arm = 'cas' AND version = $4::text::numeric
RETURNING value, version::text";

/// $1: key. $2: number. $3: value. $4: hold.
const WRITE_ON_CLAIM: &str = "\
UPDATE harness_resource SET version = $2::text::numeric, value = $3
WHERE key = $1 AND arm = 'claim' AND claim = $4::text::numeric
RETURNING value, version::text";

/// $1: key. $2: number. $3: value. $4: deadline. $5: the clock of this process.
const WRITE_ON_DEADLINE: &str = "\
UPDATE harness_resource SET version = $2::text::numeric, value = $3
WHERE key = $1 AND arm = 'deadline' AND $5::text::numeric <= $4::text::numeric
RETURNING value, version::text";

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        // The library's own text of a server's error is only `db error`.
        let Some(said) = error.as_db_error() else { return Failure::Lost(error.to_string()) };
        // After a FATAL error the session is over.
        let is_refused = said.parsed_severity() == Some(Severity::Error);
        if is_refused { Failure::Wrong(said.to_string()) } else { Failure::Lost(said.to_string()) }
    }
}

/// The decision of the server.
#[derive(Debug)]
pub(super) enum Decided {
    /// The operation had been decided; no transaction is open.
    Before(Box<DecidedOperation>),
    /// The transaction is open.
    Now(Admission),
}

/// Returns whether Postgres cannot store the request: its texts have no NUL.
pub(super) fn is_unstorable(request: &Request) -> bool {
    let Action::Write(arms) = &request.action else { return false };
    arms.values().any(|proposal| proposal.value.contains('\0'))
}

/// A parameter, as text.
fn number(number: impl ToString) -> String {
    number.to_string()
}

/// One session.
pub(super) struct Session {
    client: Client,
    prepared: BTreeMap<&'static str, Statement>,
}

/// The parameters of one statement.
type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Session {
    /// Opens the tables for a new process. Returns the last committed number too; none if the tables are new. All
    /// numbers of this process are larger than those of the processes before.
    pub(super) async fn open(address: &str, policy: &Policy) -> Result<(Session, Option<Version>), Failure> {
        let mut session = Session::connect(address).await?;
        let is_created = session.rows(IS_CREATED, &[]).await?.iter().any(|row| row.get(0));
        if !is_created {
            session.client.batch_execute(CREATE).await?;
        }
        if session.rows(LAST, &[]).await?.is_empty() {
            session.rows(FIRST, &[&policy.to_string()]).await?;
            return Ok((session, None));
        }
        let last = session.last(policy).await?;
        session.rows(JUMP, &[&number(RESTART_JUMP)]).await?;
        Ok((session, Some(last)))
    }

    /// Opens another session of this process. Returns the last committed number too.
    pub(super) async fn reopen(address: &str, policy: &Policy) -> Result<(Session, Version), Failure> {
        let mut session = Session::connect(address).await?;
        let last = session.last(policy).await?;
        Ok((session, last))
    }

    async fn connect(address: &str) -> Result<Session, Failure> {
        let lost = |error: std::io::Error| Failure::Lost(format!("connecting to {address}: {error}"));
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        let stream = stream.map_err(|elapsed| lost(elapsed.into()))?.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let mut settings = Config::new();
        settings.user(USER).dbname(USER).application_name(NAME);
        let (client, connection) = settings.connect_raw(stream, NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a session ended");
            }
        });
        let mut session = Session { client, prepared: BTreeMap::new() };
        session.rows(END_OTHERS, &[&NAME]).await?;
        Ok(session)
    }

    /// Returns the last committed number.
    async fn last(&mut self, policy: &Policy) -> Result<Version, Failure> {
        let rows = self.rows(LAST, &[]).await?;
        let row = rows.first().ok_or_else(|| Failure::Wrong("the table of the number has no row".into()))?;
        let (stored, asked): (String, _) = (row.get(1), policy.to_string());
        if stored != asked {
            let problem = format!("the tables were written with the policy '{stored}', and are opened with '{asked}'");
            return Err(Failure::Wrong(problem));
        }
        Ok(Version(parsed(row.get(0))?))
    }

    /// Runs one statement, prepared at its first use.
    async fn rows(&mut self, sql: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let statement = match self.prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(sql).await?;
                self.prepared.insert(sql, statement.clone());
                statement
            }
        };
        Ok(self.client.query(&statement, parameters).await?)
    }

    /// Begins a transaction and decides `request` on every arm. The transaction stays open for [`Session::commit`].
    pub(super) async fn decide(&mut self, policy: &Policy, request: &Request) -> Result<Decided, Failure> {
        self.client.batch_execute("BEGIN").await?;
        let last = self.rows(NUMBER, &[]).await?;
        let last = last.first().ok_or_else(|| Failure::Wrong("the table of the number has no row".into()))?;
        let last = Version(parsed(last.get(0))?);
        let id = request.hold.zip(request.op);
        if let Some(id) = id
            && let Some(former) = self.former(id).await?
        {
            self.client.batch_execute("ROLLBACK").await?;
            return Ok(Decided::Before(Box::new(former)));
        }
        let arms = self.decide_arms(policy, request, last).await?;
        let admission = Admission::decided(last, request, arms);
        if let Some((hold, op)) = id {
            let decided = DecidedOperation { request: request.clone(), admission: admission.clone() };
            let decided = serde_json::to_string(&decided).map_err(|error| Failure::Wrong(error.to_string()))?;
            self.rows(KEEP, &[&number(hold), &number(op), &decided]).await?;
        }
        Ok(Decided::Now(admission))
    }

    /// Commits the transaction. At the return it is on the server's disk.
    pub(super) async fn commit(&mut self) -> Result<(), Failure> {
        Ok(self.client.batch_execute("COMMIT").await?)
    }

    async fn former(&mut self, (hold, op): (HoldId, OpId)) -> Result<Option<DecidedOperation>, Failure> {
        let rows = self.rows(FORMER, &[&number(hold), &number(op)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let decided = serde_json::from_str(row.get(0));
        Ok(Some(decided.map_err(|error| Failure::Wrong(format!("a decided operation: {error}")))?))
    }

    async fn decide_arms(
        &mut self,
        policy: &Policy,
        request: &Request,
        last: Version,
    ) -> Result<Vec<ArmOutcome>, Failure> {
        let names: Vec<&str> = policy.arms().iter().map(|arm| arm.name()).collect();
        let key = request.key.as_str();
        self.rows(ROWS, &[&key, &names]).await?;
        // The state before the request, for the log: the conditions below do not use it.
        let before = self.rows(STATE, &[&key]).await?;
        let mut outcomes = Vec::new();
        for &arm in policy.arms() {
            let row = before.iter().find(|row| row.get::<_, &str>(0) == arm.name());
            let row = row.ok_or_else(|| Failure::Wrong(format!("the arm {arm} has no row")))?;
            let mut outcome = ArmOutcome {
                arm,
                admitted: true,
                seen: row.get::<_, Option<&str>>(3).map(parsed).transpose()?.map(Token),
                registered: false,
                base: None,
                version: Version(parsed(row.get(2))?),
                value: row.get(1),
            };
            match &request.action {
                Action::Read => outcome.registered = self.read(arm, request).await?,
                Action::Write(arms) => {
                    let proposal = &arms[&arm];
                    outcome.base = proposal.base;
                    let written = self.write(policy, arm, request, proposal, last).await?;
                    outcome.admitted = !written.is_empty();
                    if let Some(row) = written.first() {
                        outcome.registered = arm.fences() && outcome.seen != request.token;
                        (outcome.value, outcome.version) = (row.get(0), Version(parsed(row.get(1))?));
                    }
                }
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Registers a read on `arm`. Returns whether the arm has registered the token.
    async fn read(&mut self, arm: Arm, request: &Request) -> Result<bool, Failure> {
        let (key, hold) = (request.key.as_str(), request.hold.map(number));
        match (arm, request.token) {
            (Arm::Reads, Some(token)) => {
                let registered = self.rows(READ_ON_READS, &[&key, &number(token), &hold]).await?;
                Ok(!registered.is_empty())
            }
            (Arm::Claim, _) if hold.is_some() => {
                self.rows(READ_ON_CLAIM, &[&key, &hold]).await?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Runs the conditional update of `arm`. Returns the new row, if the condition held.
    async fn write(
        &mut self,
        policy: &Policy,
        arm: Arm,
        request: &Request,
        proposal: &Proposal,
        last: Version,
    ) -> Result<Vec<Row>, Failure> {
        let (key, last, value) = (request.key.as_str(), number(last), proposal.value.as_str());
        let (token, hold) = (request.token.map(number), request.hold.map(number));
        match arm {
            Arm::Off => self.rows(WRITE_ON_OFF, &[&key, &last, &value]).await,
            Arm::Writes | Arm::Reads => {
                let sql = match policy.comparison() {
                    Comparison::Default => WRITE_WITH_TOKEN,
                    Comparison::Strict => WRITE_WITH_NEW_TOKEN,
                };
                self.rows(sql, &[&key, &last, &value, &arm.name(), &token, &hold]).await
            }
            Arm::Cas => self.rows(WRITE_ON_CAS, &[&key, &last, &value, &proposal.base.map(number)]).await,
            Arm::Claim => self.rows(WRITE_ON_CLAIM, &[&key, &last, &value, &hold]).await,
            // Postgres does not see the lock's store.
            Arm::Guard => Ok(Vec::new()),
            Arm::Deadline => {
                let (until, read) = request.deadline.map(|d| (number(d.until_us), number(d.read_us))).unzip();
                self.rows(WRITE_ON_DEADLINE, &[&key, &last, &value, &until, &read]).await
            }
        }
    }
}

/// Parses a number that was read as text.
fn parsed(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| Failure::Wrong(format!("`{text}` is no number of the resource")))
}
