//! The lock of a client program, with small programs for `bash`.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use locks::{
    BootClock, Clock, Failure, FailureReason, Key, Lock, Outcome, Owner, Program, Reply, Round, ServerAddress,
    TokenSource, Unwatched, Watch,
    program::{Answer, Broken, ProgramCommand, ProgramProcess, Request},
    validity,
};

use crate::{cluster::ClientClock, watches::FreezeAfterSend};

const LEASE: Duration = Duration::from_secs(2);

/// A program that writes the id of its process to the file `pid`. It reads each request into `id` and `op`, appends
/// `op` to the file `said`, and runs `case`, which says an answer by `say`.
fn script(case: &str) -> String {
    let read = r#"id=${line#*:}; id=${id%%,*}; op=${line#*\"op\":\"}; op=${op%%\"*}; echo "$op" >> said"#;
    let say = r#"say() { printf '{"id":%s,%s}\n' "${2:-$id}" "$1"; }"#;
    let ok = r#"echo $$ > pid; ok='"ok":true'"#;
    format!("{say}\n{ok}\nwhile read -r line; do {read}\ncase $op in {case}\n*) say \"$ok\";; esac; done")
}

/// The lock of a program whose `case` answers some requests; all others are done.
fn lock(dir: &Path, case: &str) -> Program {
    lock_with(dir, case, TokenSource::Own)
}

fn lock_with(dir: &Path, case: &str, tokens: TokenSource) -> Program {
    lock_by(dir, case, tokens, Arc::new(BootClock))
}

fn lock_by(dir: &Path, case: &str, tokens: TokenSource, clock: Arc<dyn Clock>) -> Program {
    let words = ["bash", "-c", &script(case)].map(str::to_owned).to_vec();
    let servers = [ServerAddress::new("redis-1", "localhost:6379")];
    let command = ProgramCommand { words, dir: Some(dir.to_owned()) };
    Program::new(command, &servers, LEASE, tokens, clock).unwrap()
}

async fn acquire(lock: &Program, owner: &str) -> Result<locks::Hold, Failure> {
    acquire_for(lock, owner, LEASE).await
}

async fn acquire_for(lock: &Program, owner: &str, lease: Duration) -> Result<locks::Hold, Failure> {
    lock.acquire(&Key::new("k0"), Owner::new(owner), lease, &Unwatched).await
}

/// Waits until the running program has ended, and its lock can know that.
async fn ended(dir: &Path) {
    let pid = std::fs::read_to_string(dir.join("pid")).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    let ending = async {
        while process.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ending).await.expect("the program ends");
    // The tasks of the lock run during each of these waits, also on a machine that stands still now and then.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn said(dir: &Path) -> Vec<String> {
    std::fs::read_to_string(dir.join("said")).unwrap().lines().map(str::to_owned).collect()
}

/// The text of an indeterminate failure.
#[track_caller]
fn broken(result: Result<locks::Hold, Failure>) -> String {
    let failure = result.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Indeterminate, "{failure}");
    failure.to_string()
}

#[tokio::test]
async fn answers_become_holds_and_failures() {
    let dir = tempfile::tempdir().unwrap();
    let case = r#"acquire) case $line in *'"owner":"b"'*) say '"ok":false,"error":"held"';;
        *'"owner":"c"'*) say '"ok":false,"error":"error","detail":"no route"';;
        *'"owner":"d"'*) say '"ok":false,"error":"timeout"';; *) say "$ok,\"token\":7";; esac;;
        renew) say '"ok":false,"error":"unsupported"';; release) say '"ok":false,"error":"lost"';;"#;
    let lock = lock(dir.path(), case);
    lock.start().await.unwrap();
    let mut hold = acquire(&lock, "a").await.unwrap();
    assert_eq!((hold.token.map(|token| token.0), hold.lease, hold.owner.as_str()), (Some(7), LEASE, "a"));
    let held = acquire(&lock, "b").await.unwrap_err();
    assert_eq!((held.reason, held.outcome), (FailureReason::Held, Outcome::Failed));
    assert!(broken(acquire(&lock, "c").await).contains("`error` to `acquire`: no route"));
    assert!(broken(acquire(&lock, "d").await).contains("`timeout` to `acquire`"));
    let renewed = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(renewed.outcome, Outcome::Failed);
    assert!(renewed.to_string().contains("`unsupported` to `renew`"), "{renewed}");
    assert!(!lock.release(&hold, &Unwatched).await.unwrap().removed);
    assert_eq!(said(dir.path()), ["init", "acquire", "acquire", "acquire", "acquire", "renew", "release"]);
    assert_eq!(lock.restarts(), 0);
}

#[tokio::test]
async fn a_belief_counts_from_the_sending() {
    let dir = tempfile::tempdir().unwrap();
    let case = r#"acquire) case $line in *'"owner":"b"'*) say "$ok,\"valid_ms\":5000,\"lease_ms\":9000";;
        *'"owner":"c"'*) sleep 0.2; say "$ok,\"valid_ms\":100";; *) sleep 0.1; say "$ok";; esac;;"#;
    let lock = lock_with(dir.path(), case, TokenSource::None);
    lock.start().await.unwrap();
    let hold = acquire(&lock, "a").await.unwrap();
    assert_eq!(hold.valid_until, validity::promise_end(hold.sent, LEASE));
    let hold = acquire(&lock, "b").await.unwrap();
    assert_eq!(hold.valid_until, hold.sent + Duration::from_secs(5));
    assert_eq!((hold.lease, hold.token), (Duration::from_secs(9), None));
    // The answer came after the time for which the program relies on the lock: the attempt is undone.
    let late = acquire(&lock, "c").await.unwrap_err();
    assert_eq!((late.reason, late.outcome), (FailureReason::Validity, Outcome::Failed));
    assert_eq!(said(dir.path()).last().map(String::as_str), Some("release"));
}

#[tokio::test]
async fn a_late_answer_without_a_validity_is_taken_as_it_comes() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), ClientClock::new());
    let lock = lock_by(dir.path(), "", TokenSource::None, clock.clone());
    lock.start().await.unwrap();
    let watch = FreezeAfterSend { round: Round::Acquire, clock: clock.clone(), time: 2 * LEASE };
    let hold = lock.acquire(&Key::new("k0"), Owner::new("a"), LEASE, &watch).await.unwrap();
    assert_eq!(hold.valid_until, validity::promise_end(hold.sent, LEASE));
    assert!(!hold.is_valid(clock.now()), "the user of such a lock cannot notice that");
    assert_eq!(said(dir.path()), ["init", "acquire"], "nothing is undone");
}

#[tokio::test]
async fn a_renewal_shortens_a_belief_if_the_program_says_so() {
    let (dir, lease) = (tempfile::tempdir().unwrap(), 5 * LEASE);
    let case = r#"renew) case $line in *'"owner":"a"'*) say "$ok,\"valid_ms\":5000";; *) say "$ok,\"lease_ms\":5000";;
        esac;;"#;
    let lock = lock(dir.path(), case);
    lock.start().await.unwrap();
    let short = Duration::from_secs(5);
    for (owner, valid, granted) in [("a", short, lease), ("b", validity::promise_end(Duration::ZERO, short), short)] {
        let mut hold = acquire_for(&lock, owner, lease).await.unwrap();
        let renewed = lock.renew(&mut hold, lease, &Unwatched).await.unwrap();
        assert_eq!(hold.valid_until, hold.sent + valid);
        assert_eq!((renewed.valid_until, hold.lease), (hold.valid_until, granted));
    }
}

#[tokio::test]
async fn a_renewal_asks_for_no_less_than_is_promised() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"renew) echo "${line##*:}" > asked; say "$ok";;"#);
    lock.start().await.unwrap();
    let mut hold = acquire_for(&lock, "a", 5 * LEASE).await.unwrap();
    let promised = hold.valid_until;
    lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap();
    let asked_ms: u64 = asked.trim_end().trim_end_matches('}').parse().unwrap();
    let (least, most) = (promised.saturating_sub(hold.sent), 5 * LEASE);
    assert!((least..=most).contains(&Duration::from_millis(asked_ms)), "{asked_ms} ms, {least:?} are promised");
}

#[tokio::test]
async fn a_renewal_that_is_read_too_late_revives_no_hold() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), ClientClock::new());
    let lock = lock_by(dir.path(), "", TokenSource::None, clock.clone());
    lock.start().await.unwrap();
    let mut hold = acquire(&lock, "a").await.unwrap();
    let before = hold.clone();
    // The new lease would still be good, but the hold has ended meanwhile.
    let watch = FreezeAfterSend { round: Round::Renew, clock, time: LEASE };
    let late = lock.renew(&mut hold, 5 * LEASE, &watch).await.unwrap_err();
    assert_eq!((late.reason, late.outcome), (FailureReason::Validity, Outcome::Failed));
    assert_eq!(hold, before);
}

/// A clock whose first timer is due, as after a freeze, and whose second is never due.
#[derive(Default)]
struct FirstDue(AtomicBool);

impl Clock for FirstDue {
    fn now(&self) -> Duration {
        BootClock.now()
    }

    fn sleep_until(&self, _at: Duration) -> Reply<()> {
        match self.0.swap(true, Ordering::SeqCst) {
            false => Box::pin(std::future::ready(())),
            true => Box::pin(std::future::pending()),
        }
    }
}

#[tokio::test]
async fn an_answer_has_some_time_left_when_its_timer_is_due() {
    let (words, request) = (["bash", "-c", &script("")].map(str::to_owned).to_vec(), Request::Unknown);
    let dir = tempfile::tempdir().unwrap();
    let mut process = ProgramProcess::start(&ProgramCommand { words, dir: Some(dir.path().to_owned()) }).unwrap();
    let id = process.send(&request);
    let answer = process.answer(&request, id, LEASE, &FirstDue::default()).await;
    assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
}

#[tokio::test]
async fn the_last_line_of_a_program_may_have_no_end() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"acquire) printf '{"id":%s,"ok":true,"token":7}' "$id"; exit;;"#);
    lock.start().await.unwrap();
    assert_eq!(acquire(&lock, "a").await.unwrap().token.map(|token| token.0), Some(7));
}

#[tokio::test]
async fn a_program_that_does_not_answer_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"acquire) [ -e again ] && say "$ok"; touch again;;"#);
    lock.start().await.unwrap();
    let began = BootClock.now();
    let why = broken(acquire(&lock, "a").await);
    assert!(why.contains("no answer to `acquire` (id 2) within 2s") && why.contains("restart 1"), "{why}");
    assert!(BootClock.now() - began >= LEASE);
    acquire(&lock, "b").await.unwrap();
    assert_eq!(said(dir.path()), ["init", "acquire", "init", "acquire"]);
}

#[tokio::test]
async fn a_late_program_lives_until_its_promise_ends() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"acquire) say "$ok,\"lease_ms\":3500";; renew) ;;"#);
    lock.start().await.unwrap();
    let mut hold = acquire(&lock, "a").await.unwrap();
    let renewed = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    assert!(BootClock.now() >= hold.valid_until, "killed before {:?}: {renewed}", hold.valid_until);
    assert_eq!((renewed.outcome, lock.restarts()), (Outcome::Indeterminate, 1));
}

#[tokio::test]
async fn a_line_that_is_no_answer_is_quoted_with_its_number() {
    for (case, words) in [
        ("acquire) echo 'Connecting …';;", "line 2 of the program's standard output is no answer"),
        ("acquire) echo 'Connecting …';;", "the line: Connecting …"),
        (r#"acquire) say "$ok" 1;;"#, r#"expected the id of a request that waits for an answer (such as 2)"#),
        (r#"acquire) say "$ok" 9;;"#, r#"the line: {"id":9,"ok":true}"#),
        ("acquire) head -c 70000 /dev/zero | tr '\\0' x; echo;;", "expected at most 65536 bytes on a line"),
        ("acquire) exit 3;;", "the program ended with exit status: 3 after 1 lines"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock(dir.path(), case);
        lock.start().await.unwrap();
        let why = broken(acquire(&lock, "a").await);
        assert!(why.contains(words), "{case}: {why}");
        assert_eq!(lock.restarts(), 1);
    }
}

#[tokio::test]
async fn a_long_line_that_is_no_answer_makes_a_short_message() {
    let dir = tempfile::tempdir().unwrap();
    let long = r#"acquire) say "$ok,\"$(head -c 60000 /dev/zero | tr '\0' A)\":1";;"#;
    let lock = lock(dir.path(), long);
    lock.start().await.unwrap();
    let why = broken(acquire(&lock, "a").await);
    assert!(why.contains("unknown field `AAA") && why.contains("(restart 1)"), "{why}");
    assert!(why.chars().count() < 1_000, "{} characters", why.chars().count());
}

#[tokio::test]
async fn a_program_that_ended_between_requests_is_started_before_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"release) say "$ok"; exit 0;;"#);
    lock.start().await.unwrap();
    let hold = acquire(&lock, "a").await.unwrap();
    lock.release(&hold, &Unwatched).await.unwrap();
    ended(dir.path()).await;
    acquire(&lock, "b").await.unwrap();
    assert_eq!((lock.restarts(), said(dir.path()).len()), (1, 5));
}

#[tokio::test]
async fn the_late_answer_to_a_cancelled_attempt_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"acquire) [ -e again ] || sleep 0.3; touch again; say "$ok,\"token\":1";;"#);
    lock.start().await.unwrap();
    let (key, owner) = (Key::new("k0"), Owner::new("a"));
    {
        let mut acquiring = std::pin::pin!(lock.acquire(&key, owner.clone(), LEASE, &Unwatched));
        assert!(acquiring.as_mut().now_or_never().is_none());
        // The request is queued; the client waits no longer.
    }
    lock.cancel(&key, &owner, LEASE, &Unwatched).await;
    acquire(&lock, "b").await.unwrap();
    assert_eq!(said(dir.path()), ["init", "acquire", "cancel", "acquire"]);
    assert_eq!(lock.restarts(), 0);
}

#[tokio::test]
async fn a_request_behind_an_abandoned_one_has_its_own_time() {
    // Both answers together take longer than a lease, and each of them much less.
    let (dir, lease) = (tempfile::tempdir().unwrap(), 3 * LEASE);
    let lock = lock(dir.path(), r#"renew|release) sleep 3.5; say "$ok";;"#);
    lock.start().await.unwrap();
    let mut hold = acquire_for(&lock, "a", lease).await.unwrap();
    // The renewal is queued; the client waits no longer.
    assert!(lock.renew(&mut hold, lease, &Unwatched).now_or_never().is_none());
    assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
    assert_eq!(said(dir.path()), ["init", "acquire", "renew", "release"]);
    assert_eq!(lock.restarts(), 0);
}

#[tokio::test]
async fn a_lease_that_the_servers_made_shorter_hurries_no_release() {
    let dir = tempfile::tempdir().unwrap();
    // The lease of the hold would give 1 s, and the lease of `init` gives 2 s.
    let lock = lock(dir.path(), r#"acquire) say "$ok,\"lease_ms\":200";; release) sleep 1.2; say "$ok";;"#);
    lock.start().await.unwrap();
    let hold = acquire(&lock, "a").await.unwrap();
    assert!(lock.release(&hold, &Unwatched).await.unwrap().removed);
    assert_eq!((hold.lease, lock.restarts()), (Duration::from_millis(200), 0));
}

#[tokio::test]
async fn a_program_that_cannot_begin_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let refuses = lock(dir.path(), r#"init) say '"ok":false,"error":"error","detail":"no module redis"';;"#);
    assert_eq!(refuses.start().await.unwrap_err().to_string(), "the program refused `init`: error: no module redis");
    // Without a program, nothing is asked, so the attempt certainly did nothing.
    assert_eq!(acquire(&refuses, "a").await.unwrap_err().outcome, Outcome::Failed);
    let command = ProgramCommand { words: vec!["./no-such-client".into()], dir: Some(dir.path().to_owned()) };
    let lock = Program::new(command, &[], LEASE, TokenSource::None, Arc::new(BootClock)).unwrap();
    let Err(Broken::NotStarted { command, .. }) = lock.start().await else { panic!("started") };
    assert_eq!(command, "./no-such-client");
    let servers = [ServerAddress::new("redis-1", "localhost")];
    let command = ProgramCommand { words: vec!["true".into()], dir: None };
    assert!(Program::new(command, &servers, LEASE, TokenSource::None, Arc::new(BootClock)).is_err());
}

/// Notes what a watch is told to be sent.
#[derive(Default)]
struct Sent(std::sync::Mutex<Vec<Round>>);

impl Watch for Sent {
    fn sending(&self, round: Round) {
        self.0.lock().unwrap().push(round);
    }
}

#[tokio::test]
async fn an_attempt_that_waits_for_a_new_program_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), r#"init) [ -e again ] && sleep 0.3; touch again; say "$ok";; release) exit 1;;"#);
    lock.start().await.unwrap();
    let hold = acquire(&lock, "a").await.unwrap();
    lock.release(&hold, &Unwatched).await.unwrap_err();
    let (key, watch) = (Key::new("k0"), Sent::default());
    let acquiring = lock.acquire(&key, Owner::new("b"), LEASE, &watch);
    drop(acquiring.now_or_never());
    assert_eq!(*watch.0.lock().unwrap(), [Round::Acquire]);
}

/// Notes what a watch is told of an attempt and its promise.
#[derive(Default)]
struct Told(std::sync::Mutex<Vec<&'static str>>);

impl Told {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }
}

impl Watch for Told {
    fn sending(&self, _: Round) {
        self.note("sending");
    }

    fn promising(&self) {
        self.note("promising");
    }

    fn answered(&self, _: Round) {
        self.note("answered");
    }

    fn promised(&self) {
        self.note("promised");
    }
}

#[tokio::test]
async fn the_start_of_a_program_takes_nothing_from_a_promise() {
    let dir = tempfile::tempdir().unwrap();
    let slow = r#"init) [ -e again ] && sleep 0.5; touch again; say "$ok";; release) say "$ok"; exit;;"#;
    let lock = lock(dir.path(), slow);
    lock.start().await.unwrap();
    let hold = acquire(&lock, "a").await.unwrap();
    lock.release(&hold, &Unwatched).await.unwrap();
    ended(dir.path()).await;
    let (key, watch, began) = (Key::new("k0"), Told::default(), BootClock.now());
    let hold = lock.acquire(&key, Owner::new("b"), LEASE, &watch).await.unwrap();
    assert!(hold.sent >= began + Duration::from_millis(500), "the promise counts from {:?} on", hold.sent - began);
    assert_eq!(*watch.0.lock().unwrap(), ["sending", "promising", "answered", "promised"]);
}

#[tokio::test]
async fn a_new_program_says_nothing_about_the_hold_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let lost = r#"say '"ok":false,"error":"lost"';;"#;
    let lock = lock(dir.path(), &format!("acquire) say \"$ok\"; exit;; renew|release) {lost}"));
    lock.start().await.unwrap();
    let mut hold = acquire_for(&lock, "a", 5 * LEASE).await.unwrap();
    ended(dir.path()).await;
    let renewed = lock.renew(&mut hold, LEASE, &Unwatched).await.unwrap_err();
    let released = lock.release(&hold, &Unwatched).await.unwrap_err();
    for failure in [renewed, released] {
        assert_eq!(failure.outcome, Outcome::Indeterminate);
        assert!(failure.to_string().contains("started again since it acquired"), "{failure}");
    }
}

#[tokio::test]
async fn a_later_hold_does_not_make_an_earlier_one_known() {
    let dir = tempfile::tempdir().unwrap();
    let lost = r#"renew|release) say '"ok":false,"error":"lost"';;"#;
    let case = r#"acquire) case $line in *'"owner":"b"'*) exit;; *) say "$ok";; esac;;"#;
    let lock = lock(dir.path(), &format!("{case} {lost}"));
    lock.start().await.unwrap();
    let mut first = acquire_for(&lock, "a", 5 * LEASE).await.unwrap();
    assert!(broken(acquire(&lock, "b").await).contains("restart 1"));
    let mut second = acquire_for(&lock, "c", 5 * LEASE).await.unwrap();
    let renewed = lock.renew(&mut first, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!(renewed.outcome, Outcome::Indeterminate, "{renewed}");
    let released = lock.release(&first, &Unwatched).await.unwrap_err();
    assert_eq!(released.outcome, Outcome::Indeterminate, "{released}");
    // The new program knows the hold that it has granted itself.
    let renewed = lock.renew(&mut second, LEASE, &Unwatched).await.unwrap_err();
    assert_eq!((renewed.reason, renewed.outcome), (FailureReason::Lost, Outcome::Failed));
    assert!(!lock.release(&second, &Unwatched).await.unwrap().removed);
}

/// A program with a child that outlives it, and the number of the child in the file `child`. It ends after `release`.
const WITH_CHILD: &str = r#"acquire) sleep 600 > /dev/null 2>&1 & echo $! > child; say "$ok";;
    release) say "$ok"; exit;;"#;

/// Waits until the state of the child is as expected. A child that is gone has no state.
async fn child(dir: &Path, is_expected: impl Fn(&str) -> bool) {
    let child = std::fs::read_to_string(dir.join("child")).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    let waiting = async {
        while !is_expected(&state()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    assert!(waited.is_ok(), "the child: {}", state());
}

fn is_asleep(state: &str) -> bool {
    // Between its fork and its exec the child still has the name of the shell.
    state.contains("(sleep)")
}

fn is_gone(state: &str) -> bool {
    // A process that was killed and that nobody has waited for is a zombie.
    state.is_empty() || state.contains(") Z ")
}

#[tokio::test]
async fn nothing_of_a_program_outlives_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), WITH_CHILD);
    lock.start().await.unwrap();
    acquire(&lock, "a").await.unwrap();
    child(dir.path(), is_asleep).await;
    drop(lock);
    child(dir.path(), is_gone).await;
}

#[tokio::test]
async fn nothing_of_a_program_outlives_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let lock = lock(dir.path(), WITH_CHILD);
    lock.start().await.unwrap();
    let hold = acquire(&lock, "a").await.unwrap();
    child(dir.path(), is_asleep).await;
    lock.release(&hold, &Unwatched).await.unwrap();
    child(dir.path(), is_gone).await;
}
