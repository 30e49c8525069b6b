//! A network of our own: a switch and nodes, each in a network namespace, all gone when it is dropped.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use agent::{net::Namespace, protocol::Links};

/// Long enough for anything that gets through.
pub const SOON: Duration = Duration::from_secs(5);
/// Long enough to say that nothing gets through: shorter than the first retransmission of a SYN.
pub const NEVER: Duration = Duration::from_millis(700);

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// Nodes on one switch. The first is the target.
pub struct World {
    name: String,
    pub nodes: Vec<Node>,
}

/// A network namespace with one process in it.
pub struct Node {
    pub address: Ipv4Addr,
    name: String,
    process: Option<Child>,
}

impl World {
    pub fn new(nodes: u8) -> World {
        let name = format!("hrn{}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        // Built from the inside, so that a failure halfway drops what there is.
        let mut world = World { name, nodes: Vec::new() };
        ip(&format!("netns add {}", world.name));
        ip(&format!("-n {} link add br0 type bridge", world.name));
        ip(&format!("-n {} link set br0 up", world.name));
        (1..=nodes).for_each(|n| world.add(n));
        world
    }

    fn add(&mut self, number: u8) {
        let (switch, name) = (&self.name, format!("{}-{number}", self.name));
        let address = Ipv4Addr::new(10, 77, 0, number);
        ip(&format!("netns add {name}"));
        self.nodes.push(Node { address, name: name.clone(), process: None });
        ip(&format!("-n {switch} link add port{number} type veth peer name eth0 netns {name}"));
        ip(&format!("-n {switch} link set port{number} master br0 up"));
        ip(&format!("-n {name} addr add {address}/24 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
        let process = Command::new("ip").args(["netns", "exec", &name, "sleep", "1000"]).stdin(Stdio::null()).spawn();
        let pid = process.as_ref().map(Child::id).expect("a process of the node");
        self.nodes.last_mut().expect("the node").process = process.ok();
        // `ip` enters the namespace before it becomes `sleep`.
        let entered = || std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
        assert!(within(4 * SOON, entered), "no process runs in {name}");
    }

    /// The target's process and namespace end, and new ones begin with its address.
    pub fn restart_target(&mut self) {
        self.nodes[0].stop();
        // An engine takes the cable away; the namespace itself lives as long as anybody holds it open.
        ip(&format!("-n {} link del port1", self.name));
        self.add(1);
        self.nodes.swap_remove(0);
    }

    pub fn target(&self) -> &Node {
        &self.nodes[0]
    }

    pub fn peer(&self) -> &Node {
        &self.nodes[1]
    }

    pub fn third(&self) -> &Node {
        &self.nodes[2]
    }

    /// The links between the target and its peer.
    pub fn links(&self) -> Links {
        Links { peers: vec![self.peer().address], ..Links::default() }
    }

    /// All rules in the target's namespace, without what they have counted.
    pub fn rules(&self) -> String {
        let listed = Command::new("ip")
            .args(["netns", "exec", &self.target().name, "nft", "--stateless", "list", "ruleset"])
            .output()
            .expect("nft runs");
        // Two lists that are empty because nothing could be listed are the same.
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8_lossy(&listed.stdout).into_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.stop();
        }
        remove(&self.name);
    }
}

impl Node {
    pub fn pid(&self) -> i32 {
        self.process.as_ref().expect("it was not stopped").id() as i32
    }

    pub fn namespace(&self) -> Namespace {
        Namespace::of(self.pid()).expect("the node's namespace")
    }

    /// Its process and its namespace end, as when a container is removed.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        remove(&self.name);
    }

    /// Answers whatever is written to a port of the node with the same.
    pub fn echo(&self) -> SocketAddrV4 {
        let listener = self.namespace().enter(|| TcpListener::bind("0.0.0.0:0")).unwrap().expect("a port");
        let port = listener.local_addr().expect("its address").port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                thread::spawn(move || {
                    let mut buffer = [0; 65_536];
                    while let Ok(read @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..read]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        SocketAddrV4::new(self.address, port)
    }

    pub fn connect(&self, to: SocketAddrV4) -> TcpStream {
        let connect = || TcpStream::connect_timeout(&to.into(), SOON);
        let stream = self.namespace().enter(connect).unwrap().expect("a connection");
        stream.set_nodelay(true).expect("no delay of its own");
        stream
    }

    pub fn udp(&self) -> UdpSocket {
        let address = self.address;
        let socket = self.namespace().enter(|| UdpSocket::bind((address, 0))).unwrap().expect("a port");
        socket.set_read_timeout(Some(NEVER)).expect("a timeout");
        socket
    }
}

/// Returns the time that an echo took, or `None` if the answer did not arrive in time.
pub fn round_trip(stream: &mut TcpStream, within: Duration) -> Option<Duration> {
    stream.set_read_timeout(Some(within)).expect("a timeout");
    let before = agent::stamp::monotonic_ns();
    stream.write_all(b"x").ok()?;
    stream.read_exact(&mut [0]).ok()?;
    Some(Duration::from_nanos(agent::stamp::monotonic_ns() - before))
}

/// Returns the shortest of several echoes, all of which arrive. A stall of the machine makes one of them longer, and a
/// delay makes all longer.
pub fn shortest_round_trip(stream: &mut TcpStream) -> Duration {
    (0..5).map(|_| round_trip(stream, SOON).expect("an echo")).min().expect("five echoes")
}

/// Waits until something is so, and returns whether it is so within this time.
pub fn within(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let end_ns = agent::stamp::monotonic_ns() + limit.as_nanos() as u64;
    loop {
        if is_so() {
            return true;
        }
        if agent::stamp::monotonic_ns() >= end_ns {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn remove(namespace: &str) {
    let _ = Command::new("ip").args(["netns", "del", namespace]).stderr(Stdio::null()).status();
}
