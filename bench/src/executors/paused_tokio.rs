//! Ping-pong on Tokio's current-thread runtime with a paused clock: channels, and a sleep for each latency.

use std::time::Duration;

use anyhow::{Context, ensure};
use rand::Rng;
use sim::traffic::{LATENCY_US, Traffic};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep},
};
use workloads::stream::Stream;

use crate::Game;

/// One process.
struct Player {
    inbox: UnboundedReceiver<u64>,
    peer: UnboundedSender<u64>,
    /// As the links draw; a stream for each process, so that the processes share nothing.
    latencies: Stream,
    unit: Duration,
    /// The number of the next message to send or to expect.
    next: u64,
    messages: u64,
}

impl Player {
    /// Sends the next message.
    ///
    /// The sender sleeps, not the channel: a network of tasks between the processes would cost Tokio more.
    async fn send(&mut self) -> anyhow::Result<()> {
        let latency = self.latencies.at(Default::default).random_range(LATENCY_US);
        sleep(self.unit * latency as u32).await;
        self.peer.send(self.next).context("the peer has ended")?;
        self.next += 1;
        Ok(())
    }

    /// Answers until the last message. Returns the number of messages that arrived here.
    async fn play(mut self, serves: bool) -> anyhow::Result<u64> {
        let mut arrived = 0;
        if serves {
            self.send().await?;
        }
        while self.next <= self.messages {
            let number = self.inbox.recv().await.context("the peer has ended")?;
            ensure!(number == self.next, "message {number} arrived, expected {}", self.next);
            (arrived, self.next) = (arrived + 1, self.next + 1);
            if self.next <= self.messages {
                self.send().await?;
            }
        }
        Ok(arrived)
    }
}

/// Plays a game, with latencies in this unit.
pub fn ping_pong(game: &Game, unit: Duration) -> anyhow::Result<Traffic> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let started = Instant::now();
        let mut tasks = Vec::new();
        for pair in 0..u64::from(game.pairs) {
            let ((to_one, one), (to_other, other)) = (unbounded_channel(), unbounded_channel());
            let player = |inbox, peer, number| {
                let latencies = Stream::new(game.seed, number, None);
                Player { inbox, peer, latencies, unit, next: 1, messages: game.messages }
            };
            tasks.push(tokio::spawn(player(one, to_other, 2 * pair).play(true)));
            tasks.push(tokio::spawn(player(other, to_one, 2 * pair + 1).play(false)));
        }
        let mut arrived = 0;
        for task in tasks {
            arrived += task.await??;
        }
        Ok(Traffic { arrived, lasted: started.elapsed() })
    })
}
