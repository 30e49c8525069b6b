//! The picture of one window as SVG: the two holders and the resource over time.
//!
//! The picture is whole by itself: it is an image inside the report, and a file that a document can show.

mod canvas;

use history::{Arm, HoldId, NodeName, RequestKind};

use crate::timeline::{Act, FaultSpan, Hold, Standing, Timeline, WindowSpan};

use canvas::{Canvas, Scale};

/// The most rows of faults on servers.
const SERVER_ROWS: usize = 4;

/// The vertical places of everything, from the top.
struct Rows {
    first: f64,
    second: f64,
    servers: f64,
    resource: f64,
    axis: f64,
}

/// Returns the picture of a window as an SVG file. None if the timeline does not have both holds.
pub fn picture(timeline: &Timeline, window: &WindowSpan) -> Option<String> {
    let [first, second] = [*window.holds.first()?, *window.holds.get(1)?].map(|id| timeline.hold(id));
    let (first, second) = (first?, second?);
    let (from, to) = span(timeline, window, first, second);
    let bands: Vec<Band> = bands(timeline, window, [first, second], (from, to));
    let servers = bands.iter().filter(|band| band.row == Row::Servers).count().min(SERVER_ROWS);
    let servers_height = if servers == 0 { 0.0 } else { 22.0 * servers as f64 + 18.0 };
    let rows = Rows {
        first: 58.0,
        second: 142.0,
        servers: 222.0,
        resource: 238.0 + servers_height,
        axis: 304.0 + servers_height,
    };
    let mut canvas = Canvas::new(Scale::new(from, to), rows.axis + 40.0, &window.headline);
    canvas.axis(rows.axis);
    canvas.window(window, (30.0, rows.axis), &window_label(timeline, window, first, second));
    let names = [name(timeline, first), name(timeline, second)];
    for (y, name) in [(rows.first, &*names[0]), (rows.second, &*names[1]), (rows.resource, "resource")] {
        canvas.lane(y, name);
    }
    if servers > 0 {
        canvas.lane(rows.servers, "servers");
    }
    draw_hold(&mut canvas, timeline, first, rows.first, "first");
    draw_hold(&mut canvas, timeline, second, rows.second, "second");
    others(&mut canvas, timeline, [first, second], (from, to), rows.second + 28.0);
    let mut server_row = 0;
    for band in &bands {
        let y = match band.row {
            Row::First => rows.first + 18.0,
            Row::Second => rows.second + 40.0,
            Row::Servers if server_row < SERVER_ROWS => {
                server_row += 1;
                rows.servers - 12.0 + 22.0 * (server_row - 1) as f64
            }
            Row::Servers => continue,
        };
        canvas.band(y, (band.from, band.to), &band.label);
    }
    requests(&mut canvas, timeline, window, [(first, rows.first), (second, rows.second)], rows.resource);
    Some(canvas.finish())
}

/// The span of time that the picture shows.
fn span(timeline: &Timeline, window: &WindowSpan, first: &Hold, second: &Hold) -> (f64, f64) {
    let starts = [window.story_ms.0, timeline.ms(first.acquired), timeline.ms(second.acquired), window.from_ms];
    let from = starts.into_iter().fold(f64::MAX, f64::min);
    let to = [window.story_ms.1, window.to_ms].into_iter().fold(from + 1.0, f64::max);
    let margin = (to - from) * 0.06;
    (from - margin * 0.6, to + margin)
}

/// The name of the hold's client, as the lanes have it.
pub fn name(timeline: &Timeline, hold: &Hold) -> String {
    let lane = timeline.lanes.iter().find(|lane| lane.client == hold.client);
    lane.map_or_else(|| hold.process.to_string(), |lane| lane.name.clone())
}

fn window_label(timeline: &Timeline, window: &WindowSpan, first: &Hold, second: &Hold) -> String {
    let (length, later) = (seconds(window.to_ms - window.from_ms), name(timeline, second));
    match window.kind {
        "stale-holder" => {
            let first_name = name(timeline, first);
            match early_end(first) {
                Some(EarlyEnd::Release) => format!("{first_name} has released the lock and still acts: {length}"),
                Some(EarlyEnd::Loss) => format!("{first_name} has noticed its loss and still acts: {length}"),
                Some(EarlyEnd::Kill) => format!("{first_name} was killed, and its request still arrives: {length}"),
                None => format!("{first_name} has lost the lock to {later} and does not know it: {length}"),
            }
        }
        "lease-overlap" => format!("both are entitled: {length}"),
        _ => format!("granted too early: {length}"),
    }
}

fn seconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1e3 => format!("{ms:.0} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

/// The event that ended an entitlement before the end of the lease.
pub enum EarlyEnd {
    /// The client released the hold.
    Release,
    /// The client noticed the loss of the hold.
    Loss,
    /// The process of the client was killed.
    Kill,
}

/// Returns the event that ended the entitlement of a hold. None if the lease ended it.
pub fn early_end(hold: &Hold) -> Option<EarlyEnd> {
    let ends = [(hold.release, EarlyEnd::Release), (hold.lost, EarlyEnd::Loss), (hold.killed, EarlyEnd::Kill)];
    ends.into_iter().find(|(at, _)| *at == Some(hold.entitled_until())).map(|(_, early_end)| early_end)
}

fn draw_hold(canvas: &mut Canvas, timeline: &Timeline, hold: &Hold, y: f64, class: &str) {
    let [from, entitled, used] = [hold.acquired, hold.entitled_until(), hold.used_until()].map(|at| timeline.ms(at));
    let token = hold.token.map(|token| format!(", token {token}")).unwrap_or_default();
    if used > entitled {
        let end = match early_end(hold) {
            Some(EarlyEnd::Release) => "it has released the lock",
            Some(EarlyEnd::Loss) => "it has noticed the loss",
            Some(EarlyEnd::Kill) => "it was killed",
            None => "its lease has ended",
        };
        canvas.believed(y, (entitled, used), end);
    }
    canvas.hold(y, (from, entitled.max(from)), class, &format!("has the lock{token}"));
    if let Some(killed) = hold.killed {
        canvas.cross(y, timeline.ms(killed), "killed");
    }
}

/// The holds of other clients between the two holds and the end of the picture.
fn others(canvas: &mut Canvas, timeline: &Timeline, own: [&Hold; 2], (from, to): (f64, f64), y: f64) {
    let is_other = |hold: &&Hold| hold.key == own[0].key && own.iter().all(|own| own.id != hold.id);
    let mut count = 0;
    let mut tokens = Vec::new();
    for hold in timeline.holds.iter().filter(is_other) {
        let (start, end) = (timeline.ms(hold.acquired), timeline.ms(hold.entitled_until()));
        // The picture tells of the time after the first of the two holds began.
        if end < from || start > to || start < timeline.ms(own[0].acquired) {
            continue;
        }
        count += 1;
        tokens.extend(hold.token.map(|token| token.0));
        canvas.other(y, (start, end.min(to)));
    }
    if count > 0 {
        let holds = if count == 1 { "hold" } else { "holds" };
        let tokens = match (tokens.iter().min(), tokens.iter().max()) {
            (Some(least), Some(most)) if least < most => format!(", tokens {least} to {most}"),
            (Some(token), _) => format!(", token {token}"),
            _ => String::new(),
        };
        canvas.note(y + 6.0, &format!("{count} later {holds}{tokens}"));
    }
}

/// The row of a band.
#[derive(PartialEq, Eq)]
enum Row {
    First,
    Second,
    Servers,
}

/// A fault or a stall in the picture.
struct Band {
    row: Row,
    from: f64,
    to: f64,
    label: String,
}

/// The span of a fault in milliseconds, as far as it is known. None if the fault was never on: it found no process, or
/// the engine refused it.
pub fn fault_span(timeline: &Timeline, fault: &FaultSpan) -> Option<(f64, f64)> {
    if fault.unproved.is_some() && fault.injected.is_none() {
        return None;
    }
    let asked = fault.injected.or(fault.requested).map(|at| timeline.ms(at));
    let over = fault.healed.or(fault.heal_requested).map_or(timeline.ms(timeline.until), |at| timeline.ms(at));
    match fault.proved {
        // The proof of a short effect may be one instant.
        Some((from, to)) => Some((timeline.ms(from), timeline.ms(to))),
        None => asked.map(|from| (from, over.max(from))),
    }
}

/// Returns whether a node is a worker that has none of the window's holds. Its faults explain no window.
pub fn is_other_worker(timeline: &Timeline, window: &WindowSpan, node: &NodeName) -> bool {
    // Nobody knows the worker of a hold that is left out.
    let may_be_of = |id: &HoldId| timeline.hold(*id).is_none_or(|hold| hold.process.node() == *node);
    node.as_str().starts_with("worker-") && !window.holds.iter().any(may_be_of)
}

fn bands(timeline: &Timeline, window: &WindowSpan, holds: [&Hold; 2], (from, to): (f64, f64)) -> Vec<Band> {
    let nodes = holds.map(|hold| hold.process.node());
    let row_of = |node: &NodeName| match nodes.iter().position(|own| own == node) {
        Some(0) => Row::First,
        Some(_) => Row::Second,
        None => Row::Servers,
    };
    let mut bands = Vec::new();
    // A fault that missed its own hold was on all the same, and may have hit another one.
    for fault in &timeline.faults {
        let Some(span) = fault_span(timeline, fault).filter(|span| span.1 >= from && span.0 <= to) else { continue };
        let row = row_of(&fault.node);
        let is_cause = window.causes.split([',', '+', ' ']).any(|cause| cause == fault.kind.name());
        if row == Row::Servers && (!is_cause || is_other_worker(timeline, window, &fault.node)) {
            continue;
        }
        let length = seconds(span.1 - span.0);
        let open = if fault.unproved.is_some() { ", not proved" } else { "" };
        let label = match (fault.kind.name(), &row) {
            ("pause" | "stop", Row::First | Row::Second) if open.is_empty() => format!("frozen {length}"),
            (kind, Row::Servers) => format!("{kind} on {}{open}", fault.node),
            (kind, _) => format!("{kind}{open}"),
        };
        bands.push(Band { row, from: span.0, to: span.1, label });
    }
    for stall in timeline.stalls.iter().filter(|stall| window.causes.contains("stall") && stall.to > stall.from) {
        let row = row_of(&stall.process.node());
        let span = (timeline.ms(stall.from), timeline.ms(stall.to));
        if row != Row::Servers && span.1 >= from && span.0 <= to {
            let label = format!("did not run {}", seconds(span.1 - span.0));
            bands.push(Band { row, from: span.0, to: span.1, label });
        }
    }
    bands
}

/// The words on the decisions about a request: by the arms with a fence and by the arm without.
pub fn decided(act: &Act) -> String {
    let words = |admitted: bool| if admitted { "admitted" } else { "refused" };
    let of = |arm: Arm| act.decisions.iter().find(|decision| decision.arm == arm);
    let mut parts = Vec::new();
    let fenced: Vec<_> = [Arm::Writes, Arm::Reads].into_iter().filter_map(of).collect();
    match fenced.as_slice() {
        [] => {}
        [one] => parts.push(format!("fence: {}", words(one.admitted))),
        [one, two] if one.admitted == two.admitted => parts.push(format!("fence: {}", words(one.admitted))),
        both => parts.extend(both.iter().map(|one| format!("fence on {}: {}", one.arm.name(), words(one.admitted)))),
    }
    if let Some(off) = of(Arm::Off) {
        parts.push(format!("without fence: {}", words(off.admitted)));
    }
    if parts.is_empty() {
        parts.extend(act.decisions.iter().map(|one| format!("{}: {}", one.arm.name(), words(one.admitted))));
    }
    parts.join(" · ")
}

/// Returns whether an act came after the entitlement of its hold, and not before `from`, in milliseconds.
pub fn is_past_its_hold(timeline: &Timeline, hold: &Hold, act: &Act, from: f64) -> bool {
    timeline.ms(act.at) >= from && act.at > hold.entitled_until()
}

fn requests(canvas: &mut Canvas, timeline: &Timeline, window: &WindowSpan, holds: [(&Hold, f64); 2], y: f64) {
    let mut labelled = false;
    for (index, (hold, lane)) in holds.into_iter().enumerate() {
        let writes = hold.acts.iter().filter(|act| act.kind == RequestKind::Write);
        let mut first = true;
        for act in writes {
            let at = timeline.ms(act.at);
            let is_late = index == 0
                && match window.kind {
                    "stale-holder" => is_past_its_hold(timeline, hold, act, window.from_ms),
                    _ => at >= window.from_ms,
                };
            let is_refused = act.decisions.iter().any(|decision| !decision.admitted);
            let class = if is_late { "late" } else { "timely" };
            canvas.request((lane + 10.0, y), at, class, is_refused);
            if is_late && !labelled {
                labelled = true;
                let token = hold.token.map(|token| format!(" with token {token}")).unwrap_or_default();
                let is_stale = act.decisions.iter().any(|one| !one.admitted || one.standing == Standing::Stale);
                let write = if is_stale { "stale write" } else { "late write" };
                canvas.told(y, at, &format!("{write}{token}"), &decided(act));
            } else if index == 1 && first {
                canvas.told(y, at, "write", if is_refused { "" } else { "admitted" });
            }
            first = false;
        }
    }
}

#[cfg(test)]
mod tests;
