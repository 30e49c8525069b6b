//! The facts about one key: its open attempts, the clients that may have held it last, and the findings so far.

use std::{collections::BTreeMap, time::Duration};

use history::{ClientId, HoldId, Mode, Stamp};
use rustc_hash::FxHashSet;

use crate::{
    holds::{Attempt, Grant},
    per_key::PerKey,
    rules,
};

use super::{
    open_attempts::{Open, OpenAttempts},
    stuck::StuckAttempt,
};

/// The most refusals that are kept of a key, and the most of those that a client program's hold may excuse.
const REFUSALS_MAX: usize = 8;

/// A hold that its client uses no longer, and that a client program may still renew: the program has not said that it
/// released the hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub id: HoldId,
    pub process: usize,
    mode: Mode,
    /// Absent if the client did not take the lock that the program may have granted.
    grant: Option<Grant>,
    /// The stamp since which the client does not use the hold.
    since: Stamp,
}

impl Kept {
    /// The hold that an attempt has, or may have, and that its client does not use since a stamp.
    pub fn of(attempt: &Attempt, since: Stamp) -> Kept {
        Kept { id: attempt.id, process: attempt.process, mode: attempt.mode, grant: attempt.grant, since }
    }

    /// Returns whether another hold, which was acquired later, shows that this hold is over.
    pub fn is_excluded_by(&self, later: &Grant) -> bool {
        match &self.grant {
            Some(grant) => later.is_later(grant),
            None => rules::conflict(later.mode, self.mode) && rules::is_later(later.granted_after, self.since),
        }
    }
}

/// A wait or a refusal that is wrong unless the key turns out to have been held between two stamps.
#[derive(Debug)]
pub(crate) struct Finding {
    pub from: Stamp,
    pub to: Stamp,
    pub is_waiter: bool,
    /// True if a client program may have renewed a hold of the key. Then the finding proves nothing.
    pub is_kept: bool,
    /// The key counts as free since then, and must be had within the bound. Both rest on the longest lease so far.
    pub since: Stamp,
    pub bound: Duration,
    pub lease: Duration,
    pub stuck: StuckAttempt,
}

impl Finding {
    /// Returns whether the finding stands by the longest lease of the whole record. A client program tells its lease
    /// only with its first lock.
    pub fn stands(&self, longest: Duration) -> bool {
        let more = longest.saturating_sub(self.lease);
        let at = if self.is_waiter { self.to } else { self.from };
        rules::is_overdue(at, self.since.plus(more), self.bound + more)
    }
}

/// The last client that may have held a key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LastHolder {
    /// The stamp until which it may have held the key.
    pub until: Stamp,
    /// True if it was killed.
    pub is_after_kill: bool,
}

impl LastHolder {
    /// The one that may have held the key for longer.
    pub fn later(self, other: LastHolder) -> LastHolder {
        if other.until > self.until { other } else { self }
    }
}

/// The last holder of each key, of which few were killed.
#[derive(Default)]
pub(crate) struct LastHolders {
    until: PerKey<Stamp>,
    after_kill: FxHashSet<usize>,
}

impl LastHolders {
    pub fn of(&self, key: usize) -> LastHolder {
        let until = self.until.get(key).copied().unwrap_or_default();
        LastHolder { until, is_after_kill: self.after_kill.contains(&key) }
    }

    pub fn set(&mut self, key: usize, LastHolder { until, is_after_kill }: LastHolder) {
        *self.until.of(key) = until;
        if is_after_kill {
            self.after_kill.insert(key);
        } else {
            self.after_kill.remove(&key);
        }
    }
}

/// A key that has open attempts, or findings.
#[derive(Debug, Default)]
pub(crate) struct KeyWatch {
    pub open: OpenAttempts,
    pub last: LastHolder,
    pub kept: Vec<Kept>,
    pub found: Vec<Finding>,
    /// The end of the first refused attempt of each process since the key was free, and the stamp since which it was.
    pub looks: BTreeMap<usize, (Stamp, Stamp)>,
    /// The last time in which attempts may have refused each other.
    pub contended: Option<Contention>,
    pub refused: Refused,
}

/// The attempts that were refused at the last stamp of a refusal.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    at: Stamp,
    /// When the first of them was sent, and its client. If earlier attempts overlap it, the key's contention begins
    /// with them.
    first: Option<(Stamp, ClientId)>,
    /// When the first one of another client was sent.
    first_of_others: Option<Stamp>,
}

impl Refused {
    fn add(&mut self, client: ClientId, at: Stamp, sent: Stamp) {
        if at != self.at {
            *self = Refused { at, ..Refused::default() };
        }
        match self.first {
            Some((first, of)) if of != client => {
                let later = if sent < first { first } else { sent };
                self.first_of_others = Some(self.first_of_others.map_or(later, |others| others.min(later)));
                if sent < first {
                    self.first = Some((sent, client));
                }
            }
            first => self.first = Some((first.map_or(sent, |(first, _)| first.min(sent)), client)),
        }
    }

    /// When the first attempt was sent that was refused at a stamp, and is not of this client.
    fn first_not_of(&self, client: ClientId, at: Stamp) -> Option<Stamp> {
        let (first, of) = self.first.filter(|_| self.at == at)?;
        if of == client { self.first_of_others } else { Some(first) }
    }
}

/// A time in which attempts may have refused each other, because each had a part of the servers. A part may stay for a
/// lease after its attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contention {
    pub from: Stamp,
    pub until: Stamp,
}

impl KeyWatch {
    /// Returns the number of waits of one kind that stand by the longest lease so far.
    pub fn waits_alike(&self, is_kept: bool, longest: Duration) -> usize {
        let is_of_kind = |finding: &Finding| finding.is_waiter && finding.is_kept == is_kept;
        self.found.iter().filter(|finding| is_of_kind(finding) && finding.stands(longest)).count()
    }

    /// Adds a refusal. A later event may withdraw the refusals of any time, and a longer lease the first ones. So the
    /// first and the newest are kept, and some between them: the one whose neighbours are closest together is dropped.
    pub fn add_refusal(&mut self, finding: Finding, longest: Duration) {
        let is_alike = |known: &Finding| !known.is_waiter && known.is_kept == finding.is_kept && known.stands(longest);
        let alike = self.found.iter().enumerate().filter(|(_, known)| is_alike(known)).map(|(place, _)| place);
        let alike: Vec<usize> = alike.collect();
        if alike.len() >= REFUSALS_MAX {
            let between = |near: &&[usize]| self.found[near[2]].to.since(self.found[near[0]].to);
            let dropped = alike.windows(3).min_by_key(between).map(|near| near[1]);
            dropped.into_iter().for_each(|place| drop(self.found.remove(place)));
        }
        self.found.push(finding);
    }

    /// Notes a new attempt. Attempts that overlap may refuse each other. Equal stamps are concurrent, so an attempt
    /// that was refused at this stamp overlaps too, unless it is of the same client. `left_until` says how long the
    /// parts of such an attempt may stay.
    pub fn sent(&mut self, attempt: &Attempt, left_until: Stamp, bound: Duration) {
        let now = attempt.sent.at;
        let ended = self.refused.first_not_of(attempt.client, now);
        let first = self.open.met_by_next().into_iter().chain(ended).min();
        self.open.push(Open { meets: first, ..Open::of(attempt) });
        if let Some(from) = ended {
            let from = self.contended(from, left_until);
            let is_overdue = |finding: &Finding| rules::is_overdue(finding.from, from, bound);
            self.found.retain(|finding| finding.is_waiter || finding.to != now || is_overdue(finding));
        }
    }

    /// Notes that an attempt of a client was refused just now.
    pub fn refused(&mut self, client: ClientId, open: &Open, at: Stamp, left_until: Stamp) {
        if let Some(from) = open.meets {
            self.contended(from, left_until);
        }
        self.refused.add(client, at, open.sent.at);
    }

    /// Notes that attempts were refused that overlap each other since `from`. Parts that they had may stay on servers
    /// until `until`. Returns the start of the whole contention.
    fn contended(&mut self, from: Stamp, until: Stamp) -> Stamp {
        let known = self.contended.filter(|known| from <= known.until);
        let whole = known.map_or(Contention { from, until }, |known| Contention {
            from: known.from.min(from),
            until: known.until.max(until),
        });
        self.contended = Some(whole);
        whole.from
    }

    /// Returns the start of the time in which attempts may have refused each other, if `at` lies in it.
    pub fn contended_since(&self, at: Stamp) -> Option<Stamp> {
        self.contended.filter(|contended| at <= contended.until).map(|contended| contended.from)
    }

    /// Notes that a client may have held the key until this stamp.
    pub fn extend(&mut self, until: Stamp, is_after_kill: bool) {
        self.last = self.last.later(LastHolder { until, is_after_kill });
    }

    /// Withdraws findings: a client may have held the key from one stamp to the other.
    pub fn possessed(&mut self, from: Stamp, until: Stamp) {
        self.found.retain(|finding| finding.to < from || until < finding.from);
        self.extend(until, false);
    }

    /// Notes that a waiting attempt has given up. Its entry in the queue may stay for a lease. While two attempts
    /// waited, the first waited behind no other attempt, which says nothing about the second.
    pub fn waited_in_vain(&mut self, from: Stamp, until: Stamp) {
        self.found.retain(|finding| finding.is_waiter || finding.to < from || until < finding.from);
        self.extend(until, false);
    }

    /// Returns the end of the first attempt of a process that was refused since the key was free. Another attempt was
    /// refused now. A look before the end of the last disturbance, at `quiet`, does not count: a request that came late
    /// may have changed the record since, or the clock of the process may have run slow.
    pub fn first_look(&mut self, process: usize, since: Stamp, quiet: Stamp, now: Stamp) -> Stamp {
        let look = self.looks.entry(process).or_insert((since, now));
        if look.0 != since || look.1 < quiet {
            *look = (since, now);
        }
        look.1
    }

    /// No program renews these holds any more.
    pub fn forgets(&mut self, until: Stamp, is_over: impl Fn(&Kept) -> bool) {
        if self.kept.extract_if(.., |kept| is_over(kept)).count() > 0 {
            self.extend(until, false);
        }
    }

    pub fn take(&mut self, id: HoldId) -> Option<Open> {
        self.open.take(id)
    }
}
