//! The records of a history in the order of their stamps.
//!
//! A history is in the order in which the recorder received its records, and a stream that a fault held back is late.
//! A first pass has counted the records of each process. So the second pass knows which processes still have records,
//! and keeps only those records that a late process may still precede.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
    path::Path,
};

use history::{Event, HistoryError, ProcessName, Reader, Record, Stamp};

/// One item of the order.
pub enum Item {
    /// A record.
    Record(Record),
    /// No record of the process follows; with the stamp of its last one.
    Gone(ProcessName, Stamp),
}

/// The number of records of each process, and the stamp of its first one.
#[derive(Default)]
pub struct Counts(HashMap<ProcessName, (u64, Stamp)>);

impl Counts {
    /// Counts the next record of the file.
    pub fn add(&mut self, record: &Record) {
        if is_stamped(&record.event) {
            match self.0.get_mut(&record.process) {
                Some((count, _)) => *count += 1,
                None => drop(self.0.insert(record.process.clone(), (1, record.at))),
            }
        }
    }
}

/// The controller's records have no stamps.
fn is_stamped(event: &Event) -> bool {
    !matches!(event, Event::Plan { .. } | Event::ProcessEnded { .. } | Event::End)
}

struct Stream {
    name: ProcessName,
    /// Records that the file still has.
    left: u64,
    /// The stamp of its last record so far, and before its first record the stamp of that one. A process that starts
    /// late must not keep the others waiting until then.
    last: Stamp,
    queue: VecDeque<(Stamp, Record)>,
}

/// The next stamp of a stream, and the stream.
type Head = Reverse<(Stamp, usize)>;

/// Equal stamps: workers first, then the agent, then the resource, by name; as the checker reads them.
fn rank(name: &ProcessName) -> u8 {
    match name.node().as_str() {
        "resource" => 2,
        "agent" => 1,
        _ => 0,
    }
}

/// Iterates over the records, without those of the controller.
pub struct Ordered {
    reader: Reader,
    streams: Vec<Stream>,
    index: HashMap<ProcessName, usize>,
    heads: BinaryHeap<Head>,
    /// The last stamps of the processes that have records left: records before the least one are complete.
    waiting: BTreeSet<(Stamp, usize)>,
    gone: Option<usize>,
}

impl Ordered {
    /// Opens a history whose records were counted.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(history: &Path, counts: &Counts) -> Result<Ordered, HistoryError> {
        let mut named: Vec<(&ProcessName, &(u64, Stamp))> = counts.0.iter().collect();
        named.sort_by_key(|(name, _)| (rank(name), *name));
        let stream = |(name, (left, first)): (&ProcessName, &(u64, Stamp))| Stream {
            name: name.clone(),
            left: *left,
            last: *first,
            queue: VecDeque::new(),
        };
        let streams: Vec<Stream> = named.into_iter().map(stream).collect();
        let index = streams.iter().enumerate().map(|(i, stream)| (stream.name.clone(), i)).collect();
        let waiting = streams.iter().enumerate().filter(|(_, stream)| stream.left > 0);
        let waiting = waiting.map(|(i, stream)| (stream.last, i)).collect();
        Ok(Ordered { reader: Reader::open(history)?, streams, index, heads: BinaryHeap::new(), waiting, gone: None })
    }

    fn feed(&mut self, record: Record) {
        let Some(&i) = self.index.get(&record.process) else { return };
        let stream = &mut self.streams[i];
        // A stamp that goes back contradicts the record; the order of the process is kept.
        let at = record.at.max(stream.last);
        let was = std::mem::replace(&mut stream.last, at);
        stream.left = stream.left.saturating_sub(1);
        let is_left = stream.left > 0;
        if stream.queue.is_empty() {
            self.heads.push(Reverse((at, i)));
        }
        stream.queue.push_back((at, record));
        if was != at || !is_left {
            self.waiting.remove(&(was, i));
            if is_left {
                self.waiting.insert((at, i));
            }
        }
    }

    fn pop(&mut self) -> Option<Item> {
        if let Some(i) = self.gone.take() {
            let stream = &self.streams[i];
            return Some(Item::Gone(stream.name.clone(), stream.last));
        }
        let Reverse((at, _)) = self.heads.peek()?;
        if self.waiting.first().is_some_and(|(horizon, _)| at >= horizon) {
            return None;
        }
        let Reverse((_, i)) = self.heads.pop()?;
        let stream = &mut self.streams[i];
        let (_, record) = stream.queue.pop_front()?;
        match stream.queue.front() {
            Some((next, _)) => self.heads.push(Reverse((*next, i))),
            None => self.gone = (stream.left == 0).then_some(i),
        }
        Some(Item::Record(record))
    }
}

impl Iterator for Ordered {
    type Item = Result<Item, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.pop() {
                return Some(Ok(item));
            }
            match self.reader.next()? {
                Ok(record) if is_stamped(&record.event) => self.feed(record),
                Ok(_) => {}
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history of these processes and stamps.
    fn opened(records: &[(&str, u64)]) -> Ordered {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        let line = |(seq, (process, at)): (usize, &(&str, u64))| {
            format!("{{\"seq\":{seq},\"process\":\"{process}\",\"n\":0,\"at\":{at},\"event\":\"watermark\"}}\n")
        };
        std::fs::write(&path, records.iter().enumerate().map(line).collect::<String>()).unwrap();
        let mut counts = Counts::default();
        Reader::open(&path).unwrap().for_each(|record| counts.add(&record.unwrap()));
        Ordered::open(&path, &counts).unwrap()
    }

    /// The processes and stamps in order, with `!` for the end of a process.
    fn order(records: &[(&str, u64)]) -> String {
        let told = |item: Result<Item, HistoryError>| match item.unwrap() {
            Item::Record(record) => format!("{}{}", record.process, record.at.0),
            Item::Gone(process, _) => format!("{process}!"),
        };
        opened(records).map(told).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_late_stream_takes_its_place_by_its_stamps() {
        assert_eq!(order(&[("b", 5), ("b", 9), ("a", 1), ("a", 7), ("c", 8)]), "a1 b5 a7 a! c8 c! b9 b!");
    }

    #[test]
    fn a_process_that_starts_late_keeps_no_records_waiting() {
        let early = (1..=100_000_u64).map(|at| ("a", at));
        let mut ordered = opened(&early.chain([("b", 200_000)]).collect::<Vec<_>>());
        let (mut count, mut longest) = (0, 0);
        while let Some(item) = ordered.next() {
            item.unwrap();
            count += 1;
            longest = longest.max(ordered.streams.iter().map(|stream| stream.queue.len()).max().unwrap());
        }
        assert_eq!(count, 100_001 + 2, "the records, and the ends of both processes");
        assert!(longest < 10, "{longest}");
    }

    #[test]
    fn of_equal_stamps_a_worker_comes_before_the_agent_and_the_resource() {
        let expected = "worker-25 worker-2! agent5 agent! resource#25 resource#2!";
        assert_eq!(order(&[("resource#2", 5), ("worker-2", 5), ("agent", 5)]), expected);
        assert_eq!(order(&[("agent", 5), ("resource#2", 5), ("worker-2", 5)]), expected);
    }

    #[test]
    fn equal_stamps_do_not_depend_on_the_order_of_the_file() {
        assert_eq!(order(&[("b", 5), ("a", 5), ("a", 6)]), order(&[("a", 5), ("a", 6), ("b", 5)]));
    }

    #[test]
    fn many_processes_are_put_into_order_soon() {
        let names: Vec<String> = (0..100_000).map(|n| format!("p{n}")).collect();
        let records: Vec<(&str, u64)> = names.iter().zip(0..).map(|(name, at)| (name.as_str(), at)).collect();
        assert_eq!(opened(&records).count(), 2 * records.len(), "each record, and the end of its process");
    }
}
