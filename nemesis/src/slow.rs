//! `slow`: hardly any processor time is left to the target.
//!
//! Possible on workers, lock nodes and the resource. The kernel gives a container its quota anew in each period of 100 ms, and once that is used up
//! nothing in there runs until the next one. So a target that wants less than its quota is not held up at all: what is proved is that it was. Our
//! processes show it by a tick that is late by half of what a period leaves out, at least. A server has no ticks that we see: its healthcheck runs in its
//! container, out of the same quota, and takes twice as long as just before, at least.

use std::time::Duration;

use futures::future::join;
use history::FaultPhase;

use crate::{
    ClusterError,
    run::{PROOF, Site},
};

/// How often the kernel gives a quota anew.
const PERIOD: Duration = Duration::from_millis(100);
/// How much longer than just before a request must take, and by how much at least.
const SLOWER: u32 = 2;
const SLOWER_BY: Duration = Duration::from_millis(20);
/// Between two looks whether a server is as fast as before.
const LOOK: Duration = Duration::from_millis(100);
/// How many of them.
const LOOKS: u32 = 30;

pub(crate) async fn slow(site: &Site<'_>, lasting: Duration, percent: u8) -> Result<(), ClusterError> {
    if site.is_server {
        return server(site, lasting, percent).await;
    }
    let Some(process) = site.scene.look(|view| view.process(&site.node)) else {
        site.requested().await?;
        let why = "expected a running process to slow down; there was none".into();
        return site.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    site.requested().await?;
    site.cluster.slow_down(&site.node, percent).await?;
    let from = site.stamp(FaultPhase::Injected).await?;
    site.let_go().await?;
    site.control.sleep(lasting).await?;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.speed_up(&site.node).await?;
    let healed = site.stamp(FaultPhase::Healed).await?;

    let least = PERIOD * (100 - u32::from(percent)) / 200;
    let longest = |view: &crate::View| view.stall_within(&process, (from, to)).map(|(f, t)| t.since(f));
    let late = |view: &crate::View| longest(view).filter(|gap| *gap >= least);
    if site.scene.within(site.control, PROOF, late).await.is_some() {
        site.stamp(FaultPhase::Proved { from, to }).await?;
        site.missed(from).await?;
    } else {
        let seen = site.scene.look(longest).map_or(0, |gap| gap.as_millis());
        let why = format!(
            "expected a gap of ≥ {} ms between ticks, longest seen: {seen} ms; it may want no more than {percent} % of a processor",
            least.as_millis()
        );
        site.stamp(FaultPhase::Unproved { why }).await?;
    }
    site.prove_alive(healed).await
}

async fn server(site: &Site<'_>, lasting: Duration, percent: u8) -> Result<(), ClusterError> {
    let usual = usual(site).await?;
    site.requested().await?;
    site.cluster.slow_down(&site.node, percent).await?;
    let from = site.stamp(FaultPhase::Injected).await?;
    let (took, slept) = join(site.cluster.answer_time(&site.node), site.control.sleep(lasting)).await;
    let took = took?;
    slept?;
    let to = site.stamp(FaultPhase::HealRequested).await?;
    site.cluster.speed_up(&site.node).await?;
    site.stamp(FaultPhase::Healed).await?;
    let Some(usual) = usual else {
        let why = "expected a server that answers, to see it answer later; there was no answer before the fault".into();
        return site.stamp(FaultPhase::Unproved { why }).await.map(drop);
    };
    let is_slow = |took: Option<Duration>| took.is_none_or(|took| took >= usual * SLOWER && took >= usual + SLOWER_BY);
    if is_slow(took) {
        site.stamp(FaultPhase::Proved { from, to }).await?;
    } else {
        let why = format!("expected an answer to take twice as long; it took {took:?}, and {usual:?} before");
        site.stamp(FaultPhase::Unproved { why }).await?;
    }
    for _ in 0..LOOKS {
        if !is_slow(site.cluster.answer_time(&site.node).await?) {
            return site.stamp(FaultPhase::HealProved).await.map(drop);
        }
        site.control.sleep(LOOK).await?;
    }
    Ok(())
}

/// How long a request takes without the fault: the slower of two.
async fn usual(site: &Site<'_>) -> Result<Option<Duration>, ClusterError> {
    let first = site.cluster.answer_time(&site.node).await?;
    let second = site.cluster.answer_time(&site.node).await?;
    Ok(first.zip(second).map(|(first, second)| first.max(second)))
}
