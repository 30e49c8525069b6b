//! Notices faults that nobody planned: a container that dies, starts, freezes or loses its network, though no fault of
//! the plan did that.
//!
//! The engine reports every change of a container. Each operation of ours counts the reports that it will cause, under
//! the lock of its node. Any report beyond that number is unplanned. The engine does not report a stop by a signal, so
//! the processes are looked at, too.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    time::Duration,
};

use bollard::{
    errors::Error as EngineError,
    models::{EventMessage, EventMessageTypeEnum},
    query_parameters::EventsOptions,
};
use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, Fuse, ready},
    stream,
};
use history::NodeName;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Engine,
    changes::{Change, Unplanned},
    error::{Error, explain},
    looks::Looks,
    running::{Control, Member, Running},
    sweep,
};

/// The number of breaks in quick succession after which the stream of reports is lost, and the time after which it is
/// opened again.
const BREAKS_MAX: u32 = 10;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// The lifetime of a stream of an engine that is well: a proxy may end silent streams, and a run may have no reports.
const LIVES: Duration = Duration::from_secs(2);
const DOING: &str = "listening to its events";
/// How long the engine may take to say its time.
const TIME_WITHIN: Duration = Duration::from_secs(5);

type Reports = Pin<Box<dyn Stream<Item = Result<EventMessage, EngineError>> + Send>>;

/// Watches the nodes of a running cluster.
pub struct Watch<'a> {
    running: &'a Running,
    reports: Reports,
    /// The time at which the stream of reports was opened.
    opened: Instant,
    breaks: Breaks,
    /// The time from which reports are asked for again when their stream breaks, in nanoseconds since 1970: that of the
    /// last report on a container, or of the first wait for one. A report on the network may come twice, because the
    /// container is inspected then.
    last_ns: Option<i64>,
    /// The question for the engine's time. A busy engine needs more than a second, and the looks do not end the wait.
    time: Fuse<BoxFuture<'a, Option<i64>>>,
    looks: Looks,
    /// Changes that a look has found.
    found: VecDeque<Unplanned>,
}

impl Running {
    /// Watches the nodes from now on. Stop before the cluster is taken down.
    pub fn watch(&self) -> Watch<'_> {
        Watch {
            running: self,
            reports: self.reports(None),
            opened: Instant::now(),
            breaks: Breaks::default(),
            last_ns: None,
            time: time_of(self.engine()).boxed().fuse(),
            looks: Looks::new(),
            found: VecDeque::new(),
        }
    }

    /// The engine's reports on the containers of this run and on its network.
    fn reports(&self, since_ns: Option<i64>) -> Reports {
        let place = self.place();
        let since = since_ns.map(|ns| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000));
        let of = |kind: &str, by: &str, value: String| {
            let filters = [("type".to_owned(), vec![kind.to_owned()]), (by.to_owned(), vec![value])];
            let filters = Some(HashMap::from(filters));
            self.engine().docker().events(Some(EventsOptions { since: since.clone(), until: None, filters }))
        };
        let containers = of("container", "label", sweep::label_of(&place.run));
        let networks = of("network", "network", place.network.clone());
        // The end of one of them is a break, although the other one goes on.
        let to_end = |reports: Reports| reports.map(Some).chain(stream::iter([None]));
        let both = stream::select(to_end(Box::pin(containers)), to_end(Box::pin(networks)));
        Box::pin(both.scan((), |(), report| ready(report)))
    }

    fn member_of(&self, container: &str) -> Option<(&NodeName, &Member)> {
        self.members().find(|(_, member)| member.container() == container)
    }
}

impl Watch<'_> {
    /// Waits for the next change that nobody planned.
    ///
    /// # Errors
    /// The engine reports nothing any more.
    pub async fn next(&mut self) -> Result<Unplanned, Error> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Ok(found);
            }
            let report = tokio::select! {
                report = self.reports.next() => report,
                now_s = &mut self.time => {
                    self.last_ns = self.last_ns.max(now_s.map(|now_s| (now_s + 1) * 1_000_000_000));
                    continue;
                }
                () = self.looks.due() => {
                    self.found.extend(self.looks.look(self.running).await);
                    continue;
                }
            };
            let report = match report {
                Some(Ok(report)) => report,
                ended => {
                    let error = ended.and_then(Result::err);
                    let lived = if was_open(error.as_ref()) { self.opened.elapsed() } else { Duration::ZERO };
                    let why = error.map_or("they ended".to_owned(), |error| explain(&error));
                    if self.breaks.are_too_many(lived) {
                        return Err(Error::Engine { doing: DOING.to_owned(), why });
                    }
                    tracing::debug!(why, "listening to the engine's events again");
                    sleep(TRY_AGAIN_AFTER).await;
                    // One nanosecond later: the last report would come twice.
                    self.reports = self.running.reports(self.last_ns.map(|ns| ns + 1));
                    self.opened = Instant::now();
                    continue;
                }
            };
            self.breaks = Breaks::default();
            let at_wall_ns = report.time_nano.unwrap_or_default();
            if report.typ != Some(EventMessageTypeEnum::NETWORK) {
                self.last_ns = self.last_ns.max(Some(at_wall_ns));
            }
            if let Some((node, change)) = self.unplanned(&report).await {
                return Ok(Unplanned { node, change, at_wall_ns });
            }
        }
    }

    /// Returns the change that a report is about, if no operation of ours caused it, or if it ends a fault of others.
    async fn unplanned(&self, report: &EventMessage) -> Option<(NodeName, Change)> {
        let actor = report.actor.as_ref()?;
        let is_network = report.typ == Some(EventMessageTypeEnum::NETWORK);
        let attribute = |name: &str| actor.attributes.as_ref()?.get(name).map(String::as_str);
        let container = if is_network { attribute("container") } else { actor.id.as_deref() }?;
        let (node, member) = self.running.member_of(container)?;
        // An operation of ours that is under way counts first. It may have replaced the container.
        let mut control = member.control.lock().await;
        if member.container() != container {
            return None;
        }
        let change = if is_network {
            self.connection(member, &mut control).await?
        } else {
            match report.action.as_deref()? {
                // The ends of our own processes are noticed by their standard output.
                "die" if member.server().is_some() => Change::Died,
                "start" if member.server().is_some() => Change::Started,
                "pause" => Change::Froze,
                "unpause" => Change::Thawed,
                _ => return None,
            }
        };
        (!control.own.explain(change)).then(|| (node.clone(), change))
    }

    /// Returns how the connection of a running container to the run's network has changed. A container leaves the
    /// network when it ends, too, and enters it when it starts.
    async fn connection(&self, member: &Member, control: &mut Control) -> Option<Change> {
        let engine = self.running.engine().docker();
        let inspected = engine.inspect_container(&member.container(), None).await.ok()?;
        if inspected.state?.running != Some(true) {
            return None;
        }
        let networks = inspected.network_settings?.networks.unwrap_or_default();
        let ours = &self.running.place().network;
        let is_connected = networks.iter().any(|(name, at)| name == ours || at.network_id.as_ref() == Some(ours));
        if std::mem::replace(&mut control.is_connected, is_connected) == is_connected {
            return None;
        }
        Some(if is_connected { Change::Reconnected } else { Change::CutOff })
    }
}

/// The breaks of streams of reports, one after the other. A stream that was open for some time begins a new count.
#[derive(Debug, Default)]
struct Breaks(u32);

impl Breaks {
    /// Counts the break of a stream that was open for this time. Returns whether the stream is lost.
    fn are_too_many(&mut self, lived: Duration) -> bool {
        self.0 = if lived < LIVES { self.0 + 1 } else { 1 };
        self.0 >= BREAKS_MAX
    }
}

/// Returns whether a stream was open before it ended with this error, or without one. Only the body of an answer ends
/// so. Other errors are those of the request, however long the request took.
fn was_open(error: Option<&EngineError>) -> bool {
    matches!(error, None | Some(EngineError::IOError { .. }))
}

/// The engine's time, from which reports are asked for again if their stream breaks before the first one. The second
/// that the engine tells counts as over: our own starts may lie in it.
async fn time_of(engine: &Engine) -> Option<i64> {
    timeout(TIME_WITHIN, engine.now_s()).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::sync::mpsc;

    use super::*;
    use crate::fake_engine;

    #[test]
    fn only_breaks_in_quick_succession_count() {
        let mut breaks = Breaks::default();
        // A proxy ends each silent stream after a minute.
        assert!((0..BREAKS_MAX * 2).all(|_| !breaks.are_too_many(Duration::from_secs(60))));
        // The engine is gone: the last break of the proxy was the first one.
        assert!((0..BREAKS_MAX - 2).all(|_| !breaks.are_too_many(Duration::ZERO)));
        assert!(breaks.are_too_many(Duration::ZERO));
    }

    #[tokio::test]
    async fn a_stream_that_broke_off_was_open_and_a_failed_request_was_not() {
        // The body of this answer breaks off before its first part.
        const BROKEN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        for (reply, expected) in [(BROKEN, true), ("", false)] {
            let dir = tempfile::tempdir().unwrap();
            let engine = fake_engine::start(&dir, move |_| (Duration::ZERO, reply.to_owned())).await;
            let running = fake_engine::running(&engine).await;
            let error = running.reports(None).next().await.and_then(Result::err);
            assert_eq!(was_open(error.as_ref()), expected, "{error:?}");
        }
    }

    #[tokio::test]
    async fn the_reports_of_the_time_without_a_stream_are_asked_for() {
        let (dir, (asked, mut requests)) = (tempfile::tempdir().unwrap(), mpsc::unbounded_channel());
        let report = |at_s: u32| {
            format!(r#"{{"Type":"container","Action":"die","Actor":{{"ID":"other"}},"timeNano":{at_s}000000000}}"#)
        };
        // Two streams become one, so an older report may come after a newer one.
        let reports = [5, 9, 7].map(report).join("\n");
        let answer = move |request: &str| {
            if request.contains("/events?") {
                asked.send(request.to_owned()).unwrap();
                return fake_engine::json(&reports);
            }
            fake_engine::json("{}")
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let running = fake_engine::running(&engine).await;
        let mut watch = running.watch();
        // The containers and the network have a stream each.
        let four = async {
            let mut all = Vec::new();
            while all.len() < 4 {
                all.extend(requests.recv().await);
            }
            all
        };
        let asked = tokio::select! {
            asked = four => asked,
            _ = watch.next() => panic!("nothing has happened to a node of the run"),
        };
        assert!(asked[2..].iter().all(|request| request.contains("since=9.000000001")), "{asked:?}");
    }

    #[tokio::test]
    async fn looks_do_not_end_the_wait_for_the_time_of_a_busy_engine() {
        let (dir, late) = (tempfile::tempdir().unwrap(), Duration::from_millis(1_200));
        let answer = move |request: &str| match request {
            r if r.ends_with("/info") => (late, fake_engine::json(r#"{"SystemTime":"1970-01-01T00:00:09Z"}"#)),
            r if r.contains("/events?") => (TIME_WITHIN, String::new()),
            // The look at the worker: its container does not run.
            _ => (Duration::ZERO, fake_engine::json("{}")),
        };
        let engine = fake_engine::start(&dir, answer).await;
        let running = fake_engine::running(&engine).await;
        let mut watch = running.watch();
        assert!(timeout(2 * late, watch.next()).await.is_err());
        assert_eq!(watch.last_ns, Some(10_000_000_000));
    }

    /// The change of worker-1 that nobody planned, according to this report.
    async fn unplanned(watch: &Watch<'_>, report: &str) -> Option<Change> {
        let found = watch.unplanned(&serde_json::from_str(report).unwrap()).await;
        found.map(|(node, change)| {
            assert_eq!(node.as_str(), "worker-1");
            change
        })
    }

    #[tokio::test]
    async fn each_cut_is_told_unless_the_node_is_down() {
        let (dir, container) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(String::new())));
        let seen = Arc::clone(&container);
        let answer = move |_: &str| (Duration::ZERO, fake_engine::json(&seen.lock().unwrap()));
        let engine = fake_engine::start(&dir, answer).await;
        let running = fake_engine::running(&engine).await;
        let watch = running.watch();
        let report = r#"{"Type":"network","Actor":{"ID":"network","Attributes":{"container":"container"}}}"#;
        // The state of the container (running or not, and its network), and the change that it shows.
        for (n, (runs, network, expected)) in [
            (false, "other", None),
            (true, "network", None),
            (true, "other", Some(Change::CutOff)),
            (true, "other", None),
            (false, "network", None),
            (true, "network", Some(Change::Reconnected)),
            (true, "other", Some(Change::CutOff)),
            (true, "network", Some(Change::Reconnected)),
            (false, "other", None),
        ]
        .into_iter()
        .enumerate()
        {
            let networks = format!(r#"{{"Networks":{{"{network}":{{}}}}}}"#);
            *container.lock().unwrap() = format!(r#"{{"State":{{"Running":{runs}}},"NetworkSettings":{networks}}}"#);
            assert_eq!(unplanned(&watch, report).await, expected, "report {n}");
        }
    }

    #[tokio::test]
    async fn of_a_process_of_ours_only_a_freeze_that_is_not_ours_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake_engine::start(&dir, |_| (Duration::ZERO, fake_engine::json("{}"))).await;
        let running = fake_engine::running(&engine).await;
        let watch = running.watch();
        running.member(&"worker-1".into()).unwrap().control.lock().await.own.froze = 1;
        let (froze, thawed) = (Some(Change::Froze), Some(Change::Thawed));
        for (action, expected) in
            [("die", None), ("start", None), ("pause", None), ("pause", froze), ("unpause", thawed), ("exec_die", None)]
        {
            let report = format!(r#"{{"Type":"container","Action":"{action}","Actor":{{"ID":"container"}}}}"#);
            assert_eq!(unplanned(&watch, &report).await, expected, "{action}");
        }
    }

    #[tokio::test]
    async fn a_stream_of_reports_that_ends_alone_is_opened_again() {
        let (dir, (asked, mut requests)) = (tempfile::tempdir().unwrap(), mpsc::unbounded_channel());
        let answer = move |request: &str| match request {
            r if !r.contains("/events?") => fake_engine::json("{}"),
            // The reports on the network end. Those on the containers go on.
            r if r.contains("%22network%22%3A") => {
                asked.send(()).unwrap();
                fake_engine::json("")
            }
            _ => format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}", fake_engine::OPEN),
        };
        let engine = fake_engine::start(&dir, move |request| (Duration::ZERO, answer(request))).await;
        let running = fake_engine::running(&engine).await;
        let mut watch = running.watch();
        let twice = async { (requests.recv().await, requests.recv().await) };
        tokio::select! {
            asked = timeout(TRY_AGAIN_AFTER * 4, twice) => assert!(asked.is_ok(), "it is asked for once only"),
            _ = watch.next() => panic!("nothing has happened to a node of the run"),
        }
    }
}
