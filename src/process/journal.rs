//! The journal of a process: numbered, stamped events on standard output, each in one `write(2)` before the caller goes
//! on.

use std::{io::Write, os::unix::fs::MetadataExt};

use anyhow::Context;
use history::{Event, Report, Role, STALL_FROM, StallCause, Stamp};
use parking_lot::Mutex;

use super::stamp;

/// Writes a process's events.
pub struct Journal<W = std::io::Stdout> {
    state: Mutex<State<W>>,
}

struct State<W> {
    out: W,
    next: u64,
    last: Stamp,
    line: Vec<u8>,
    held: Option<HeldPlace>,
    /// True after `finished`.
    has_ended: bool,
}

/// The place of an event whose content is not known yet. Later events wait behind it, because stamps never go back.
struct HeldPlace {
    at: Stamp,
    behind: Vec<(Stamp, Event)>,
}

impl Journal {
    /// Begins the journal of this process with the event `started`.
    ///
    /// # Errors
    /// The kernel gives no boot id or time namespace, so this process's stamps cannot be compared with those of other
    /// processes.
    pub fn begin(role: Role) -> anyhow::Result<Journal> {
        let (boot_id, time_namespace) = (boot_id()?, time_namespace()?);
        let journal = Journal::over(std::io::stdout());
        journal.record(Event::Started { role, boot_id, time_namespace });
        Ok(journal)
    }
}

impl<W: Write> Journal<W> {
    fn over(out: W) -> Journal<W> {
        let (line, last) = (Vec::new(), Stamp(0));
        Journal { state: Mutex::new(State { out, next: 0, last, line, held: None, has_ended: false }) }
    }

    /// Stamps `event` and writes it. Afterwards the kernel has the event, so it survives a SIGKILL.
    pub fn record(&self, event: Event) -> Stamp {
        let mut state = self.state.lock();
        state.write(stamp::now(), &event)
    }

    /// Stamps the next event before its content is known. Until [`Journal::fill_place`], all other events wait in
    /// memory, so a kill loses them. In that time no watermark leaves, and nothing is judged beyond the place.
    pub fn hold_place(&self) {
        let mut state = self.state.lock();
        state.held.get_or_insert_with(|| HeldPlace { at: stamp::now(), behind: Vec::new() });
    }

    /// Writes `event` at the held place, or now if no place is held, and then the events behind it.
    pub fn fill_place(&self, event: Option<Event>) {
        let mut state = self.state.lock();
        let now = stamp::now();
        let HeldPlace { at, behind } = state.held.take().unwrap_or(HeldPlace { at: now, behind: Vec::new() });
        event.iter().map(|event| (at, event)).chain(behind.iter().map(|(at, event)| (*at, event))).for_each(
            |(at, event)| {
                state.put(at, event);
            },
        );
        state.note_slow_write(now);
    }

    /// Writes `finished`, and exits.
    pub fn finish(&self) -> ! {
        self.end();
        std::process::exit(0)
    }

    /// Writes `finished`. Nothing follows it, not even the stall of a slow write: later events are dropped.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.put(stamp::now(), &Event::Finished);
        state.has_ended = true;
    }

    /// Writes an event with the stamp `at`, taken earlier.
    ///
    /// # Panics
    /// If an event with a later stamp was written in between. The stamps of a process must never go back, so a task
    /// must not yield between taking a stamp and writing its event.
    pub fn record_at(&self, at: Stamp, event: Event) {
        self.state.lock().write(at, &event);
    }
}

impl<W: Write> State<W> {
    fn write(&mut self, at: Stamp, event: &Event) -> Stamp {
        assert!(at >= self.last, "an event of {at:?} comes after one of {:?}", self.last);
        if let Some(held) = &mut self.held {
            held.behind.push((at, event.clone()));
            return at;
        }
        let before = stamp::now();
        self.put(at, event);
        self.note_slow_write(before);
        at
    }

    /// Records a stall if the writes since `before` were slow.
    fn note_slow_write(&mut self, before: Stamp) {
        let after = stamp::now();
        // The reader of the stream was slow, or the process was frozen here; in both cases no other task ran.
        if after.since(before) >= STALL_FROM {
            self.put(after, &Event::Stall { from: before, to: after, late: StallCause::Write });
        }
    }

    fn put(&mut self, at: Stamp, event: &Event) {
        if self.has_ended {
            return;
        }
        self.line.clear();
        let written = serde_json::to_writer(&mut self.line, &Report { n: self.next, at, event })
            .map_err(std::io::Error::from)
            .and_then(|()| {
                self.line.push(b'\n');
                self.out.write_all(&self.line)?;
                self.out.flush()
            });
        if written.is_err() {
            // The controller has ended, so nobody would read an error message.
            std::process::exit(3);
        }
        self.next += 1;
        self.last = at;
    }
}

fn boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading the kernel's boot id from {path}"))?;
    Ok(text.trim().to_owned())
}

fn time_namespace() -> anyhow::Result<u64> {
    let path = "/proc/self/ns/time";
    Ok(std::fs::metadata(path).with_context(|| format!("reading the time namespace from {path}"))?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_numbers_without_gaps_and_growing_stamps() {
        let mut out = Vec::new();
        let journal = Journal::over(&mut out);
        let early = stamp::now();
        journal.record_at(early, Event::Watermark);
        for _ in 0..3 {
            journal.record(Event::Watermark);
        }
        drop(journal);
        let lines: Vec<serde_json::Value> =
            out.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect();
        let numbers: Vec<_> = lines.iter().map(|l| l["n"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert!(lines.windows(2).all(|w| w[0]["at"].as_u64() <= w[1]["at"].as_u64()));
        assert_eq!(lines[0]["event"], "watermark");
    }

    /// A stream whose reader keeps the first write waiting for the shortest stall.
    struct Slow<'a> {
        out: &'a mut Vec<u8>,
        keeps_waiting: bool,
    }

    impl Write for Slow<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if std::mem::take(&mut self.keeps_waiting) {
                std::thread::sleep(STALL_FROM);
            }
            self.out.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_slow_write_is_a_stall() {
        for is_held in [false, true] {
            let mut out = Vec::new();
            let journal = Journal::over(Slow { out: &mut out, keeps_waiting: true });
            if is_held {
                journal.hold_place();
                journal.fill_place(Some(Event::Recovered { durable: 7 }));
            } else {
                journal.record(Event::Watermark);
            }
            drop(journal);
            let text = String::from_utf8(out).unwrap();
            let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!((&last["event"], &last["late"]), (&"stall".into(), &"write".into()), "{text}");
        }
    }

    #[test]
    fn the_wait_for_a_decision_is_no_slow_write() {
        let mut out = Vec::new();
        let journal = Journal::over(&mut out);
        journal.hold_place();
        std::thread::sleep(STALL_FROM);
        let decided = stamp::now();
        journal.fill_place(Some(Event::Recovered { durable: 7 }));
        drop(journal);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\"recovered\""), "{text}");
        // A busy machine may freeze the process later on; such a stall is a true one.
        let is_false = |line: &serde_json::Value| line["event"] == "stall" && line["from"].as_u64() < Some(decided.0);
        assert!(!text.lines().any(|line| is_false(&serde_json::from_str(line).unwrap())), "{text}");
    }

    #[test]
    fn nothing_follows_the_end() {
        let mut out = Vec::new();
        let journal = Journal::over(&mut out);
        journal.record(Event::Watermark);
        journal.end();
        journal.record(Event::Watermark);
        journal.hold_place();
        journal.fill_place(Some(Event::Watermark));
        drop(journal);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().last().unwrap().contains("\"finished\""), "{text}");
    }

    #[test]
    fn events_wait_behind_a_held_place_and_keep_their_stamps() {
        let recorded = |filled: Option<Event>| {
            let mut out = Vec::new();
            let journal = Journal::over(&mut out);
            journal.record(Event::Watermark);
            journal.hold_place();
            journal.record(Event::Watermark);
            let written = journal.state.lock().next;
            journal.fill_place(filled);
            journal.record(Event::Watermark);
            drop(journal);
            let lines = out.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok());
            let lines: Vec<serde_json::Value> = lines.collect();
            assert!(lines.windows(2).all(|w| w[0]["at"].as_u64() <= w[1]["at"].as_u64()));
            assert!(lines.iter().zip(0..).all(|(line, n)| line["n"].as_u64() == Some(n)));
            (written, lines.iter().map(|l| l["event"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let filled = recorded(Some(Event::Recovered { durable: 7 }));
        assert_eq!(filled, (1, ["watermark", "recovered", "watermark", "watermark"].map(str::to_owned).to_vec()));
        assert_eq!(recorded(None), (1, ["watermark"; 3].map(str::to_owned).to_vec()));
    }

    #[test]
    #[should_panic(expected = "comes after one of")]
    fn a_stamp_older_than_the_last_event_panics() {
        let journal = Journal::over(Vec::new());
        let kept = stamp::now();
        journal.record(Event::Watermark);
        journal.record_at(kept, Event::Watermark);
    }
}
