//! What the controller asks of the agent, and what it answers: plain types, one JSON object a line.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
};

use serde::{Deserialize, Serialize};

/// What the agent is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Faults of packets.
    Packets(PacketRequest),
    /// One target, whatever faults are on.
    Target(TargetRequest),
    /// Faults of clocks.
    Clocks(ClockRequest),
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// What the fault has done so far.
    Packets(PacketTally),
    /// What was found at the target.
    Target(TargetAnswer),
    /// What was done to the clocks, or what they show.
    Clocks(ClockAnswer),
}

// ---- packets

/// The number of a fault, unique in a run. One fault may be on at several targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultNumber(pub u32);

impl fmt::Display for FaultNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is asked about faults of packets. The answer is a [`PacketTally`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum PacketRequest {
    /// Puts a fault on at a target.
    Inject {
        /// Its number.
        fault: FaultNumber,
        /// Any process of the target; the pid is that of the host.
        pid: i32,
        /// What is done.
        what: PacketFault,
    },
    /// Takes a fault off wherever it is on.
    Heal {
        /// Its number.
        fault: FaultNumber,
    },
    /// Takes all faults off.
    HealAll,
}

/// What is asked about one target, whatever faults are on. The pids are those of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum TargetRequest {
    /// Opens a connection from inside.
    Probe {
        /// Any process of the target.
        pid: i32,
        /// To where.
        to: SocketAddrV4,
        /// How long an answer is waited for.
        timeout_ms: u64,
    },
    /// Opens a connection from inside to a port that is opened for it at the other end: whoever refuses it is not the other end.
    Knock {
        /// Any process of the target.
        pid: i32,
        /// Any process of the other end.
        at: i32,
        /// The other end's address.
        to: Ipv4Addr,
        /// How long an answer is waited for.
        timeout_ms: u64,
    },
    /// Lists TCP connections.
    Connections {
        /// Any process of the target.
        pid: i32,
        /// With whom; the way does not matter.
        links: Links,
    },
    /// Resets TCP connections.
    Reset {
        /// Any process of the target.
        pid: i32,
        /// With whom; the way does not matter.
        links: Links,
    },
    /// Asks a Redis server for the time, from inside: what is said on loopback is touched by no fault of packets.
    RedisTime {
        /// Any process of the target.
        pid: i32,
        /// Where it listens.
        port: u16,
        /// How long an answer is waited for.
        timeout_ms: u64,
    },
    /// Tries what faults of packets need.
    Abilities {
        /// Any process of the target.
        pid: i32,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TargetAnswer {
    /// What the probe found.
    Probed(ProbeAnswer),
    /// The connections.
    Connections(Vec<Connection>),
    /// Those that were reset.
    Reset(Vec<Connection>),
    /// How far the wall clock of the server is ahead, by its own word.
    RedisTime(ToldAhead),
    /// What works.
    Abilities(PacketAbilities),
}

/// How far a clock is ahead of the kernel's by the word of whoever goes by it: it said so between two readings of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldAhead {
    /// At least, in nanoseconds.
    pub least_ns: i64,
    /// At most, in nanoseconds.
    pub most_ns: i64,
}

/// A fault of packets between one target and its peers, over IPv4. It holds for new connections and for established ones; packets
/// that stay inside the target (loopback) are never touched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum PacketFault {
    /// No packet gets through.
    Partition {
        /// Which packets.
        links: Links,
        /// What becomes of them.
        #[serde(default)]
        cut: Cut,
    },
    /// Each packet is late, and none overtakes another of its link: packets close together share the longest delay drawn for them.
    Delay {
        /// Which packets.
        links: Links,
        /// By how much.
        by: DelayRange,
        /// Which of them are held.
        #[serde(default)]
        held: HeldPart,
        /// What the delays are drawn from.
        seed: u64,
    },
    /// Packets are dropped, each by itself. Inside a connection that shows as delay.
    Loss {
        /// Which packets.
        links: Links,
        /// From 0, none, to 1, all.
        probability: f64,
        /// What is lost is drawn from it.
        seed: u64,
    },
    /// Each packet is late by a draw of its own, so packets of different connections overtake each other.
    Reorder {
        /// Which packets.
        links: Links,
        /// By how much.
        by: DelayRange,
        /// Whether packets of one connection overtake each other too.
        #[serde(default)]
        within_connections: bool,
        /// What the delays are drawn from.
        seed: u64,
    },
}

/// Packets between the target and its peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// The peers; everybody, if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Ipv4Addr>,
    /// Only TCP with this port at the peers; everything, if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Which way.
    #[serde(default)]
    pub way: Way,
}

/// Which way packets go, as the target sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// To the target.
    In,
    /// From the target.
    Out,
    /// Both.
    #[default]
    Both,
}

/// What becomes of packets that do not get through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// Nobody hears of them again, as with a broken cable.
    #[default]
    Drop,
    /// Their sender is told: a reset for TCP, an ICMP error for the rest. So that the answer arrives, resets and ICMP errors get through.
    Reject,
}

/// Delays drawn uniformly from a range, both ends included; equal ends are a fixed delay. Microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayRange {
    /// The shortest.
    pub from_us: u64,
    /// The longest.
    pub to_us: u64,
}

/// Which packets a delay holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldPart {
    /// All.
    #[default]
    All,
    /// TCP with payload: what is written on established connections. Connections open as before, and acknowledgements pass; the end of a
    /// connection waits behind what is held.
    Payload,
}

/// One packet that was held, or lost, and for how long. Stamps are `CLOCK_MONOTONIC` by the raw system call, in nanoseconds. The packet
/// was held at least from the one to the other: `held_ns` is taken after it was read, `released_ns` before the kernel is told to let it go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldPacket {
    /// When it was read from the queue.
    pub held_ns: u64,
    /// When it was let go or dropped.
    pub released_ns: u64,
    /// Its sender. Port 0 for what is neither TCP nor UDP.
    pub from: SocketAddrV4,
    /// Its receiver.
    pub to: SocketAddrV4,
    /// Bytes of payload in it.
    pub payload_bytes: u32,
    /// What became of it.
    pub end: HeldEnd,
}

/// What became of a held packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldEnd {
    /// Released when its delay was over.
    Due,
    /// Released before that, by the heal.
    Healed,
    /// Dropped.
    Lost,
}

/// What a fault of packets did, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketTally {
    /// Packets that were held and released.
    pub held: u64,
    /// Packets that the fault let pass at once.
    pub passed: u64,
    /// Packets that it dropped, as asked: those of a loss.
    pub lost: u64,
    /// Packets that were dropped because the queue was full, which nobody asked for.
    pub overrun: u64,
}

/// What a probe found: one attempt at a new TCP connection from inside a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum ProbeAnswer {
    /// The connection stood after so long.
    Connected {
        /// From before the attempt until it stood.
        latency_ns: u64,
    },
    /// Somebody answered with a reset: packets get through, or a fault rejects them.
    Refused {
        /// From before the attempt until the answer.
        latency_ns: u64,
    },
    /// Nobody answered in time.
    Silent,
    /// The attempt failed otherwise.
    Failed {
        /// How.
        why: String,
    },
}

/// A TCP connection of a target, as its kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// The target's end.
    pub local: SocketAddrV4,
    /// The peer's end.
    pub peer: SocketAddrV4,
    /// How often in a row the oldest unacknowledged packet was sent again. Zero again once it is acknowledged.
    pub retransmits: u8,
    /// Until it is sent again, in milliseconds; none, if nothing is unacknowledged.
    pub next_retransmit_ms: Option<u32>,
    /// Bytes written by the target that the peer has not acknowledged.
    pub unacknowledged_bytes: u32,
}

/// What works in a target's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketAbilities {
    /// Rules of `nft`: needed by partitions.
    pub nft: Ability,
    /// `iptables-nft` with the target `NFQUEUE`: needed by delay, loss and reorder.
    pub iptables_queue: Ability,
    /// A queue bound over netlink: needed by delay, loss and reorder.
    pub queue: Ability,
    /// Listing connections: needed by the proof of a heal.
    pub connections: Ability,
    /// Resetting connections.
    pub reset: Ability,
}

/// Whether something works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum Ability {
    /// It was tried and works.
    Works,
    /// It was tried and does not.
    Fails {
        /// What was tried, what it said, and what may be done.
        why: String,
    },
}

// ---- clocks

/// Which clocks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichClock {
    /// `CLOCK_REALTIME` and what follows it: its coarse form, `gettimeofday`, `time`, `CLOCK_TAI`.
    Wall,
    /// `CLOCK_MONOTONIC`, its coarse form and `CLOCK_BOOTTIME` together; never `CLOCK_MONOTONIC_RAW`.
    Monotonic,
    /// All of them.
    Both,
}

impl WhichClock {
    /// Whether the wall clock is among them.
    pub fn is_wall(self) -> bool {
        self != WhichClock::Monotonic
    }

    /// Whether the monotonic clock is among them.
    pub fn is_monotonic(self) -> bool {
        self != WhichClock::Wall
    }
}

/// What becomes of a clock, from what it shows now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClockChange {
    /// It jumps by so many nanoseconds; backwards if negative, which only the wall clock can. Jumps add up.
    JumpNs(i64),
    /// It runs fast (or slow, if negative) by so many parts per million, until the next change of its rate. 0: it runs right again, and what it
    /// has gained stays.
    DriftPpm(i32),
    /// It jumps there and back again for ever, beginning with there; only the wall clock can. By 0: it stops doing so.
    Strobe {
        /// How far it jumps.
        by_ns: i64,
        /// For how long it stays there, and then back.
        period_ns: u64,
    },
}

/// What is asked about the clocks of the container in which process `pid` lives; the pid is that of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
pub enum ClockRequest {
    /// Moves them.
    Move {
        /// A process of the container.
        pid: i32,
        /// Which of them.
        clock: WhichClock,
        /// How.
        change: ClockChange,
    },
    /// Makes the wall clock true again (itself a jump), and a monotonic clock run right from where it is: that never goes back.
    Heal {
        /// A process of the container.
        pid: i32,
    },
    /// Puts the original code back, whatever that does to a monotonic clock: for servers that outlive the run.
    Restore {
        /// A process of the container.
        pid: i32,
    },
    /// How far the clocks of this one process are from the truth.
    Ahead {
        /// The process.
        pid: i32,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClockAnswer {
    /// It was done to these processes.
    Done {
        /// Their pids on the host.
        pids: Vec<i32>,
    },
    /// So far are they ahead.
    Ahead(ClocksAhead),
}

/// How far the clocks of a process are ahead of the kernel's (behind, if negative).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClocksAhead {
    /// The wall clock.
    pub wall_ns: i64,
    /// `CLOCK_MONOTONIC` and its coarse form.
    pub monotonic_ns: i64,
    /// `CLOCK_BOOTTIME`: as the monotonic clock, but for what a drift makes of a time in which the machine was suspended.
    pub boottime_ns: i64,
}
