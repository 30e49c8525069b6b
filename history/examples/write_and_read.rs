//! Writes a short history, and reads it back: `cargo run -p lock-history --example write_and_read`.

use history::{ClientId, Event, HistoryError, HoldId, Key, Mode, Reader, Record, Stamp, Tail, Writer};

fn main() -> Result<(), HistoryError> {
    let path = std::env::temp_dir().join(format!("history-{}.jsonl", std::process::id()));
    let mut writer = Writer::create(&path)?;
    for n in 0..3 {
        let at = Stamp(1_000_000_000 * (n + 1));
        let (client, attempt, key) = (ClientId(0), HoldId(n + 1), Key::new("k0"));
        let event = Event::Acquire { client, attempt, key, intended: at, mode: Mode::Write, above: None };
        writer.append(&Record { seq: n, process: "worker-1".into(), n, at, event })?;
    }
    writer.flush()?;

    let mut reader = Reader::open(&path)?;
    for record in reader.by_ref() {
        let Record { seq, process, at, event, .. } = record?;
        println!("#{seq} {process} at {} ns: {event:?}", at.0);
    }
    assert_eq!(reader.tail(), Tail::Whole, "a history that was cut short ends in the middle of a line");
    drop(std::fs::remove_file(&path));
    Ok(())
}
