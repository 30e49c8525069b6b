//! A ZooKeeper server in memory that speaks the wire protocol: as much of it as the client uses.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use locks::{BootClock, Clock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::sleep,
};

const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const NODE_DELETED: i32 = 2;
const CHILDREN_CHANGED: i32 = 4;

/// The server. Its sessions end when their timeouts are over.
#[derive(Clone, Default)]
pub struct Ensemble(Arc<Mutex<Tree>>);

#[derive(Default)]
struct Tree {
    zxid: i64,
    sequence: i32,
    sessions: BTreeMap<i64, Session>,
    /// Path, and the session of an ephemeral znode.
    znodes: BTreeMap<String, Znode>,
    /// The path, whether its children are watched, and the session.
    watches: Vec<(String, bool, i64)>,
    loses_next_create: bool,
    loses_next_delete: bool,
    /// Connections of earlier eras are silent.
    era: u32,
    notifications: usize,
}

struct Session {
    timeout: Duration,
    /// By the boot clock: a test makes Tokio's clock jump.
    ends: Duration,
    connection: UnboundedSender<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Znode {
    czxid: i64,
    owner: i64,
}

impl Ensemble {
    /// Starts the server, and returns its address too.
    pub async fn start() -> (Ensemble, String) {
        let ensemble = Ensemble::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = ensemble.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        let ending = ensemble.clone();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(10)).await;
                let ended: Vec<i64> = ending
                    .tree()
                    .sessions
                    .iter()
                    .filter(|(_, s)| BootClock.now() >= s.ends)
                    .map(|(id, _)| *id)
                    .collect();
                ended.into_iter().for_each(|session| ending.tree().end(session));
            }
        });
        (ensemble, address)
    }

    /// The names in the queue of `key`, in the order of their creation.
    pub fn queue(&self, key: &str) -> Vec<String> {
        let prefix = format!("/locks/{key}/");
        let tree = self.tree();
        let mut found: Vec<_> = tree.znodes.iter().filter(|(path, _)| path.starts_with(&prefix)).collect();
        found.sort_by_key(|(_, znode)| znode.czxid);
        found.into_iter().map(|(path, _)| path[prefix.len()..].to_owned()).collect()
    }

    /// Removes a znode, as an operator may.
    pub fn remove(&self, key: &str, name: &str) {
        self.tree().delete(&format!("/locks/{key}/{name}"));
    }

    /// Ends the session of a znode.
    pub fn end_session_of(&self, key: &str, name: &str) {
        let mut tree = self.tree();
        let owner = tree.znodes[&format!("/locks/{key}/{name}")].owner;
        tree.end(owner);
    }

    /// Breaks the connection instead of answering the next creation of an ephemeral znode.
    pub fn lose_next_create(&self) {
        self.tree().loses_next_create = true;
    }

    /// Breaks the connection instead of doing the next deletion.
    pub fn lose_next_delete(&self) {
        self.tree().loses_next_delete = true;
    }

    /// Answers nothing more on the connections that are open now.
    pub fn fall_silent(&self) {
        self.tree().era += 1;
    }

    /// The count of notifications that were sent to watching clients.
    pub fn notifications(&self) -> usize {
        self.tree().notifications
    }

    /// The count of watches of sessions that have not ended.
    pub fn watches(&self) -> usize {
        let tree = self.tree();
        tree.watches.iter().filter(|(.., session)| tree.sessions.contains_key(session)).count()
    }

    /// The count of sessions that have not ended.
    pub fn sessions(&self) -> usize {
        self.tree().sessions.len()
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap()
    }

    async fn serve(self, stream: TcpStream) {
        let (mut reader, mut writer) = stream.into_split();
        let mut first = [0; 4];
        if reader.read_exact(&mut first).await.is_err() {
            return;
        }
        if &first == b"srvr" {
            let _ = writer.write_all(b"Zookeeper version: 3.8.0-test, built on a day\nMode: leader\n").await;
            return;
        }
        let mut connect = vec![0; usize::try_from(i32::from_be_bytes(first)).unwrap()];
        if reader.read_exact(&mut connect).await.is_err() {
            return;
        }
        let (connection, mut outgoing) = unbounded_channel::<Vec<u8>>();
        // The connection ends when its session, or this task's loop, lets go of the sender.
        tokio::spawn(async move {
            while let Some(bytes) = outgoing.recv().await {
                if writer.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        });
        let mut connect = Input(&connect);
        let (_, _, timeout, asked) = (connect.int(), connect.long(), connect.int(), connect.long());
        let Some(session) = self.tree().connect(asked, timeout, connection.clone()) else {
            let mut output = Output::default();
            output.int(0).int(0).long(0).bytes(&[0; 16]).0.push(0);
            let _ = connection.send(output.framed());
            return;
        };
        let mut output = Output::default();
        output.int(0).int(timeout).long(session).bytes(&[0; 16]).0.push(0);
        let _ = connection.send(output.framed());
        let era = self.tree().era;
        while let Some(request) = frame(&mut reader).await {
            if self.tree().era != era {
                continue;
            }
            match self.tree().answer(session, &request) {
                Some(answer) => drop(connection.send(answer)),
                None => break,
            }
        }
        // Messages that the session still sends through this connection are lost.
        if let Some(session) = self.tree().sessions.get_mut(&session)
            && session.connection.same_channel(&connection)
        {
            session.connection = unbounded_channel().0;
        }
    }
}

impl Tree {
    fn connect(&mut self, asked: i64, timeout: i32, connection: UnboundedSender<Vec<u8>>) -> Option<i64> {
        let timeout = Duration::from_millis(u64::try_from(timeout).unwrap());
        if asked == 0 {
            self.zxid += 1;
            let ends = BootClock.now() + timeout;
            self.sessions.insert(self.zxid, Session { timeout, ends, connection });
            return Some(self.zxid);
        }
        let session = self.sessions.get_mut(&asked)?;
        session.connection = connection;
        Some(asked)
    }

    /// The answer to a request; none if the connection ends here.
    fn answer(&mut self, session: i64, request: &[u8]) -> Option<Vec<u8>> {
        let known = self.sessions.get_mut(&session)?;
        known.ends = BootClock.now() + known.timeout;
        let mut input = Input(request);
        let (xid, kind) = (input.int(), input.int());
        let mut output = Output::default();
        let error = match kind {
            // Ping.
            11 => 0,
            -11 => {
                self.end(session);
                0
            }
            15 => {
                let (path, _data) = (input.text(), input.text());
                for _ in 0..input.int() {
                    let _acl = (input.int(), input.text(), input.text());
                }
                self.create(session, path, input.int(), &mut output)?
            }
            2 if std::mem::take(&mut self.loses_next_delete) => return None,
            2 => match self.delete(&input.text()) {
                true => 0,
                false => NO_NODE,
            },
            3 => {
                let path = input.text();
                if input.flag() {
                    self.watches.push((path.clone(), false, session));
                }
                match self.znodes.get(&path) {
                    Some(znode) => output.stat(*znode),
                    None => NO_NODE,
                }
            }
            8 => {
                let path = format!("{}/", input.text());
                if input.flag() {
                    self.watches.push((path.clone(), true, session));
                }
                let children: Vec<_> = self.znodes.keys().filter_map(|child| child.strip_prefix(&path)).collect();
                output.int(i32::try_from(children.len()).unwrap());
                for child in children {
                    output.bytes(child.as_bytes());
                }
                0
            }
            // One check in a transaction.
            14 => {
                let _header = (input.int(), input.flag(), input.int());
                let path = input.text();
                if path == "/" || self.znodes.contains_key(&path) {
                    output.int(13).0.push(0);
                    output.int(0);
                } else {
                    output.int(-1).0.push(0);
                    output.int(NO_NODE).int(NO_NODE);
                }
                output.int(-1).0.push(1);
                output.int(-1);
                0
            }
            // A watch that the client does not need any more.
            18 => {
                let path = input.text();
                let of_children = format!("{path}/");
                self.watches.retain(|(at, _, of)| *of != session || (*at != path && *at != of_children));
                0
            }
            // The watches of a session that has connected again are those that it had.
            101 | 105 => 0,
            other => panic!("request of type {other}"),
        };
        let mut answer = Output::default();
        answer.int(xid).long(self.zxid).int(error);
        if error == 0 {
            answer.0.extend(output.0);
        }
        Some(answer.framed())
    }

    fn create(&mut self, session: i64, mut path: String, flags: i32, output: &mut Output) -> Option<i32> {
        let (is_ephemeral, is_sequential) = (flags & 1 != 0, flags & 2 != 0);
        let parent = path.rsplit_once('/').unwrap().0.to_owned();
        if !parent.is_empty() && !self.znodes.contains_key(&parent) {
            return Some(NO_NODE);
        }
        if is_sequential {
            path.push_str(&format!("{:010}", self.sequence));
            self.sequence += 1;
        }
        if self.znodes.contains_key(&path) {
            return Some(NODE_EXISTS);
        }
        self.zxid += 1;
        let znode = Znode { czxid: self.zxid, owner: if is_ephemeral { session } else { 0 } };
        output.bytes(path.as_bytes()).stat(znode);
        self.znodes.insert(path, znode);
        self.notify(&format!("{parent}/"), true, CHILDREN_CHANGED, &parent);
        let is_lost = is_ephemeral && std::mem::take(&mut self.loses_next_create);
        (!is_lost).then_some(0)
    }

    fn delete(&mut self, path: &str) -> bool {
        if self.znodes.remove(path).is_none() {
            return false;
        }
        self.zxid += 1;
        let parent = path.rsplit_once('/').unwrap().0;
        self.notify(path, false, NODE_DELETED, path);
        self.notify(&format!("{parent}/"), true, CHILDREN_CHANGED, parent);
        true
    }

    fn end(&mut self, session: i64) {
        let of: Vec<_> = self.znodes.iter().filter(|(_, z)| z.owner == session).map(|(path, _)| path.clone()).collect();
        for path in of {
            self.delete(&path);
        }
        self.sessions.remove(&session);
    }

    fn notify(&mut self, watched: &str, children: bool, kind: i32, path: &str) {
        let (told, kept) =
            std::mem::take(&mut self.watches).into_iter().partition(|(at, of, _)| at == watched && *of == children);
        self.watches = kept;
        let told: Vec<(String, bool, i64)> = told;
        for (_, _, session) in told {
            let Some(session) = self.sessions.get(&session) else { continue };
            let mut output = Output::default();
            output.int(-1).long(-1).int(0).int(kind).int(3).bytes(path.as_bytes());
            let _ = session.connection.send(output.framed());
            self.notifications += 1;
        }
    }
}

async fn frame(reader: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let length = reader.read_i32().await.ok()?;
    let mut frame = vec![0; usize::try_from(length).ok()?];
    reader.read_exact(&mut frame).await.ok()?;
    Some(frame)
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn flag(&mut self) -> bool {
        self.take(1) != [0]
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = usize::try_from(self.int().max(0)).unwrap();
        String::from_utf8(self.take(length).to_vec()).unwrap()
    }
}

#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(i32::try_from(value.len()).unwrap()).0.extend(value);
        self
    }

    /// A znode's numbers, of which only two matter here. Returns "no error".
    fn stat(&mut self, znode: Znode) -> i32 {
        self.long(znode.czxid).long(0).long(0).long(0).int(0).int(0).int(0).long(znode.owner).int(0).int(0).long(0);
        0
    }

    fn framed(&self) -> Vec<u8> {
        [&i32::try_from(self.0.len()).unwrap().to_be_bytes()[..], &self.0].concat()
    }
}
