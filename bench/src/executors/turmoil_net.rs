//! Ping-pong between hosts of turmoil, over its network.
//!
//! turmoil draws latencies itself: whole milliseconds, exponentially distributed between two limits. In each tick it
//! runs every host, and delivers the messages that are due by then. A tick below a millisecond has no use, because its
//! hosts run on Tokio's timers.

use std::{
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use anyhow::anyhow;
use sim::traffic::{LATENCY_US, Traffic};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::{TcpListener, TcpStream, UdpSocket};

use crate::Game;

/// The protocol of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
}

/// With this rate, the mean of turmoil's distribution is the middle of its limits, as for the links: the solution of
/// (1 - exp(-rate)) / rate = 1/2.
const RATE: f64 = 1.5936;
const PORT: u16 = 9000;

/// The connection of one process to the other of its pair.
enum Wire {
    Udp(UdpSocket, SocketAddr),
    Tcp(TcpStream),
}

impl Wire {
    async fn open(protocol: Protocol, peer: &str, serves: bool) -> turmoil::Result<Wire> {
        let (here, there) = ((Ipv4Addr::UNSPECIFIED, PORT), (turmoil::lookup(peer), PORT).into());
        Ok(match (protocol, serves) {
            (Protocol::Udp, _) => Wire::Udp(UdpSocket::bind(here).await?, there),
            (Protocol::Tcp, true) => Wire::Tcp(TcpStream::connect(there).await?),
            (Protocol::Tcp, false) => Wire::Tcp(TcpListener::bind(here).await?.accept().await?.0),
        })
    }

    async fn send(&mut self, number: u64) -> turmoil::Result {
        match self {
            Wire::Udp(socket, peer) => drop(socket.send_to(&number.to_be_bytes(), *peer).await?),
            Wire::Tcp(stream) => stream.write_all(&number.to_be_bytes()).await?,
        }
        Ok(())
    }

    async fn receive(&mut self) -> turmoil::Result<u64> {
        match self {
            Wire::Udp(socket, _) => {
                let mut bytes = [0; 8];
                socket.recv_from(&mut bytes).await?;
                Ok(u64::from_be_bytes(bytes))
            }
            Wire::Tcp(stream) => Ok(stream.read_u64().await?),
        }
    }
}

/// Answers until the last message, and counts the messages that arrive.
async fn play(mut wire: Wire, serves: bool, messages: u64, arrived: Rc<Cell<u64>>) -> turmoil::Result {
    let mut next = 1;
    if serves {
        wire.send(next).await?;
        next += 1;
    }
    while next <= messages {
        let number = wire.receive().await?;
        if number != next {
            return Err(format!("message {number} arrived, expected {next}").into());
        }
        arrived.set(arrived.get() + 1);
        next += 1;
        if next <= messages {
            wire.send(next).await?;
            next += 1;
        }
    }
    Ok(())
}

/// Plays a game: a host for each process.
pub fn ping_pong(game: &Game, protocol: Protocol, tick: Duration) -> anyhow::Result<Traffic> {
    let mut sim = turmoil::Builder::new()
        .rng_seed(game.seed)
        .tick_duration(tick)
        .min_message_latency(Duration::from_millis(*LATENCY_US.start()))
        .max_message_latency(Duration::from_millis(*LATENCY_US.end()))
        .simulation_duration(Duration::MAX / 2)
        .build();
    sim.set_message_latency_curve(RATE);
    let arrived = Rc::<Cell<u64>>::default();
    for pair in 0..game.pairs {
        for serves in [false, true] {
            let [own, peer] = [serves, !serves].map(|serves| format!("{pair}-{serves}"));
            let (messages, arrived) = (game.messages, arrived.clone());
            sim.client(own, async move {
                let wire = Wire::open(protocol, &peer, serves).await?;
                play(wire, serves, messages, arrived).await
            });
        }
    }
    sim.run().map_err(|e| anyhow!("{e}"))?;
    Ok(Traffic { arrived: arrived.get(), lasted: sim.elapsed() })
}
