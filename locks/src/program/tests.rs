//! The promises of a client program, with small programs for `bash`.

use super::*;
use crate::{clock::BootClock, ports::Unwatched};

const LEASE: Duration = Duration::from_secs(2);

/// The lock of a program that does `before`, and answers each request with `ok` and these fields. The program runs.
async fn started(before: &str, fields: &str) -> Program {
    let answer = format!(r#"printf '{{"id":%s,"ok":true{fields}}}\n' "${{id%%,*}}""#);
    let script = format!("while read -r line; do id=${{line#*:}}; {before}{answer}; done");
    let words = ["bash", "-c", &script].map(str::to_owned).to_vec();
    let command = ProgramCommand { words, dir: None };
    let program = Program::new(command, &[], LEASE, TokenSource::None, Arc::new(BootClock)).unwrap();
    program.start().await.unwrap();
    program
}

async fn acquired(program: &Program, owner: &str) -> Hold {
    program.acquire(&Key::new("k0"), Owner::new(owner), LEASE, &Unwatched).await.unwrap()
}

#[tokio::test]
async fn a_hold_that_is_over_is_forgotten() {
    let program = started("", "").await;
    let (released, given_up) = (acquired(&program, "a").await, acquired(&program, "b").await);
    assert_eq!(program.granted.lock().ends.len(), 2);
    let promised = program.granted.lock().latest();
    program.release(&released, &Unwatched).await.unwrap();
    program.gave_up(&given_up);
    assert!(program.granted.lock().ends.is_empty());
    // The client still relies on the promise of the hold that it has given up.
    assert_eq!(program.granted.lock().latest(), promised);
}

/// A clock that jumps ahead all the time.
struct Jumping(AtomicU64);

impl Clock for Jumping {
    fn now(&self) -> Duration {
        Duration::from_secs(3_600 * self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Duration) -> crate::ports::Reply<()> {
        crate::ports::replied()
    }
}

#[tokio::test]
async fn a_clock_fault_makes_no_program_late() {
    let program = Program { clock: Arc::new(Jumping(AtomicU64::new(1))), ..started("sleep 0.2; ", "").await };
    let hold = acquired(&program, "a").await;
    assert!(program.still_promised() > Duration::from_millis(1), "the promise lasts as long as before");
    program.release(&hold, &Unwatched).await.unwrap();
    assert_eq!(program.restarts(), 0);
}

#[test]
fn a_promise_lasts_until_its_latest_end() {
    let [first, second] = ["a", "b"].map(Owner::new);
    let (early, late) = (Duration::from_secs(1), Duration::from_secs(2));
    let ends = [(first.clone(), late), (second.clone(), early)].into();
    let mut granted = Granted { ends, ..Granted::default() };
    granted.renewed(&first, early);
    assert_eq!(granted.latest(), late);
    for owner in [first, second] {
        granted.gave_up(&owner);
        assert_eq!(granted.latest(), late);
    }
}

#[test]
fn the_promise_of_a_long_lease_is_waited_for() {
    let (words, lease, clock) = (vec!["true".to_owned()], 2 * PROMISE_WAIT_MAX, Arc::new(BootClock));
    let command = ProgramCommand { words, dir: None };
    let program = Program::new(command, &[], lease, TokenSource::None, clock).unwrap();
    program.granted.lock().ends.insert(Owner::new("a"), RawClock.now() + lease);
    assert!(program.still_promised() > PROMISE_WAIT_MAX + PROMISE_WAIT_MAX / 2);
}

#[tokio::test]
async fn no_promise_makes_the_harness_wait_for_ever() {
    let program = started("", r#","lease_ms":10000000000"#).await;
    let mut hold = acquired(&program, "a").await;
    let (ended, longest) = (Duration::from_millis(1), PROMISE_WAIT_MAX + Duration::from_millis(1));
    assert_eq!(program.still_promised(), longest);
    program.renew(&mut hold, LEASE, &Unwatched).await.unwrap();
    assert_eq!(program.still_promised(), longest);
    program.release(&hold, &Unwatched).await.unwrap();
    assert_eq!(program.still_promised(), ended);
}
