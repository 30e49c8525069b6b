//! Objects: which answers an object can give, and what becomes of it.

use rustc_hash::FxHashMap;

use crate::{
    operation::{Action, Client, History, Value},
    text::shortened,
};

/// The kind of the object that a history is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// Reads and writes of one value.
    Register,
    /// A register with compare-and-set.
    CasRegister,
    /// A lock that any client can release, as in Knossos.
    Mutex,
    /// A lock that only its holder can release.
    OwnerMutex,
    /// A lock that only its holder can release, whose fencing tokens grow from hold to hold.
    FencedMutex,
    /// Keys with values that are read, replaced, extended and compared.
    Kv,
}

impl ModelKind {
    /// All kinds, with the names that a user gives.
    pub const ALL: [(&'static str, ModelKind); 6] = [
        ("register", ModelKind::Register),
        ("cas-register", ModelKind::CasRegister),
        ("mutex", ModelKind::Mutex),
        ("owner-mutex", ModelKind::OwnerMutex),
        ("fenced-mutex", ModelKind::FencedMutex),
        ("kv", ModelKind::Kv),
    ];

    /// The name that a user gives.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, kind)| *kind == self);
        found.expect("each kind is in the list").0
    }

    /// Returns whether the object is a lock.
    pub fn is_lock(self) -> bool {
        matches!(self, ModelKind::Mutex | ModelKind::OwnerMutex | ModelKind::FencedMutex)
    }

    /// Returns whether the object is a lock that only its holder can release.
    pub(crate) fn has_owner(self) -> bool {
        matches!(self, ModelKind::OwnerMutex | ModelKind::FencedMutex)
    }
}

/// The content of an object: a value, or the holder of a lock and the rank of its last token.
pub(crate) type State = u64;

const FREE: u64 = 0;
/// The holder of a lock without owners, and a holder whose owner is unknown.
const ANYBODY: u64 = 1;

/// A value that appends made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Made {
    text: String,
    /// True if all of its parts are strings.
    is_of_strings: bool,
}

/// An object, with what its states stand for.
pub(crate) struct Model<'a> {
    kind: ModelKind,
    initial: Value,
    history: &'a History,
    /// Values that appends made, by their index after the values of the history.
    made: Vec<Made>,
    made_states: FxHashMap<Made, State>,
    appended: FxHashMap<(State, Value), State>,
    /// Bytes of the values that appends made.
    bytes: usize,
    /// The tokens that a lock can have given last, and their ranks: the index of each, and 1.
    tokens: Vec<i64>,
    ranks: FxHashMap<i64, u64>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(kind: ModelKind, initial: Value, history: &'a History) -> Model<'a> {
        let (made, made_states, appended, tokens, ranks) = Default::default();
        Model { kind, initial, history, made, made_states, appended, bytes: 0, tokens, ranks }
    }

    /// Forgets all states, for another search. They have no meaning afterwards.
    pub(crate) fn forget(&mut self) {
        *self = Model::new(self.kind, self.initial, self.history);
    }

    pub(crate) fn initial(&self) -> State {
        if self.kind.is_lock() { FREE } else { u64::from(self.initial.index()) }
    }

    /// Bytes that the states need.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + (self.appended.len() + self.tokens.len()) * 48
    }

    /// The state after the operation, or `None` if the object cannot give this answer in this state.
    pub(crate) fn step(&mut self, state: State, client: Client, action: Action) -> Option<State> {
        let of = |value: Value| u64::from(value.index());
        match action {
            Action::Read(value) => self.contains(state, value).then_some(state),
            Action::Write(value) => Some(of(value)),
            Action::Cas(from, to) => self.contains(state, from).then(|| of(to)),
            // A state that can be a string or another form may be refused as either. An absent key and an empty text
            // answer a read alike, but a compare-and-set may tell them apart.
            Action::CasRefused(from) => {
                let is_one_absent = (state == of(Value::ABSENT)) != (from == Value::ABSENT);
                (is_one_absent || self.is_string(state).is_none() || !self.contains(state, from)).then_some(state)
            }
            Action::Append(value) => Some(self.append(state, value)),
            Action::Acquire(token) => self.acquire(state, client, token),
            Action::Release => self.release(state, client),
        }
    }

    /// The holder of the lock after an acquisition of this client. Clients with the same holder are interchangeable.
    pub(crate) fn holder(&self, client: Client) -> u64 {
        let is_anybody = !self.kind.has_owner() || self.history.unnamed.contains(&client);
        if is_anybody { ANYBODY } else { u64::from(client.0) + 2 }
    }

    /// Returns whether the object has this value. A key that has no value and one that has an empty text answer alike.
    fn contains(&self, state: State, value: Value) -> bool {
        let is_of_kind = || self.is_string(state).is_none_or(|known| known == self.history.values.is_string(value));
        state == u64::from(value.index())
            || (self.kind == ModelKind::Kv && self.text(state) == self.value_text(value) && is_of_kind())
    }

    /// Returns whether the state is a string, and no other form with the same text. `None`: appends made it of other
    /// forms too, so it can be either.
    fn is_string(&self, state: State) -> Option<bool> {
        match state.checked_sub(MADE) {
            Some(made) => self.made[made as usize].is_of_strings.then_some(true),
            None => Some(self.history.values.is_string(Value::of_index(state as u32))),
        }
    }

    fn value_text(&self, value: Value) -> &str {
        if value == Value::ABSENT { "" } else { self.history.values.text(value) }
    }

    fn text(&self, state: State) -> &str {
        match state.checked_sub(MADE) {
            Some(made) => &self.made[made as usize].text,
            None => self.value_text(Value::of_index(state as u32)),
        }
    }

    fn append(&mut self, state: State, value: Value) -> State {
        if let Some(known) = self.appended.get(&(state, value)) {
            return *known;
        }
        let text = [self.text(state), self.value_text(value)].concat();
        let is_of_strings = self.is_string(state) == Some(true) && self.history.values.is_string(value);
        let made = Made { text, is_of_strings };
        let next = match self.made_states.get(&made) {
            Some(known) => *known,
            None => {
                let next = MADE + self.made.len() as u64;
                self.bytes += 2 * made.text.len() + 112;
                self.made.push(made.clone());
                self.made_states.insert(made, next);
                next
            }
        };
        self.appended.insert((state, value), next);
        next
    }

    fn acquire(&mut self, state: State, client: Client, token: Option<i64>) -> Option<State> {
        let (holder, rank) = (state >> 32, state & u64::from(u32::MAX));
        if holder != FREE {
            return None;
        }
        let rank = if self.kind == ModelKind::FencedMutex { self.next_rank(rank, token)? } else { rank };
        Some(self.holder(client) << 32 | rank)
    }

    /// The rank after an acquisition with this token. An unknown token is a number too, so it is at least the next one
    /// after the last token; any larger one would allow less later. Before the first known token it can be any number.
    fn next_rank(&mut self, rank: u64, token: Option<i64>) -> Option<u64> {
        let last = rank.checked_sub(1).map(|last| self.tokens[last as usize]);
        let next = match (last, token) {
            (None, None) => return Some(0),
            (Some(last), None) => last.saturating_add(1),
            (last, Some(token)) if last.is_none_or(|last| token > last) => token,
            _ => return None,
        };
        let rank = self.ranks.entry(next).or_insert_with(|| {
            self.tokens.push(next);
            self.tokens.len() as u64
        });
        Some(*rank)
    }

    fn release(&self, state: State, client: Client) -> Option<State> {
        let (holder, rank) = (state >> 32, state & u64::from(u32::MAX));
        let releaser = self.holder(client);
        let is_right = holder == releaser || holder == ANYBODY || releaser == ANYBODY;
        (holder != FREE && is_right).then_some(rank)
    }

    /// The state in words, for a message.
    pub(crate) fn words(&self, state: State) -> String {
        if !self.kind.is_lock() {
            return match state.checked_sub(MADE).map(|made| &self.made[made as usize]) {
                Some(made) if made.is_of_strings => self.history.values.string_words(&made.text),
                Some(made) => shortened(&made.text),
                None => self.history.values.words(Value::of_index(state as u32)),
            };
        }
        match state >> 32 {
            FREE => "free".to_owned(),
            ANYBODY => "held".to_owned(),
            holder => format!("held by {}", self.history.client_words(Client((holder - 2) as u32))),
        }
    }
}

/// The first of the states of values that appends made.
const MADE: u64 = 1 << 32;
