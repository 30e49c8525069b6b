//! Details of a builder's grant beyond the usual ones.

use history::{Event, HoldId, Key, Mode, NodeAnswer, Program};

use super::{HistoryBuilder, ms};

impl HistoryBuilder {
    /// Adds a hold acquired through a queue, with a lease that had been kept alive until `promised`.
    pub fn acquire_promised(
        &mut self,
        hold: u64,
        worker: u32,
        sent: u64,
        promised: u64,
        ok: u64,
        token: u64,
    ) -> &mut Self {
        self.acquire_knowing(hold, worker, sent, promised, ok, token);
        if let Some((.., Event::Acquired { promised_from, .. })) = self.events.last_mut() {
            *promised_from = Some(ms(promised));
        }
        self
    }

    /// Makes the clients use a program, which tells no answers of the nodes.
    pub fn by_program(&mut self) -> &mut Self {
        self.plan.program = Some(Program { command: vec!["./my-client".into()], files: Vec::new() });
        for (_, _, event) in &mut self.events {
            match event {
                Event::Acquired { answers, .. } => *answers = vec![("program".into(), NodeAnswer::Granted)],
                Event::Renewed { answers, .. } | Event::Released { answers, .. } => {
                    *answers = vec![("program".into(), NodeAnswer::Done)];
                }
                _ => {}
            }
        }
        self
    }

    /// The place in the queue of the hold that was acquired last.
    pub fn with_place(&mut self, at: u64) -> &mut Self {
        if let Some((.., Event::Acquired { place, .. })) = self.events.last_mut() {
            *place = Some(at);
        }
        self
    }

    /// Gives the attempt of a hold a mode.
    pub fn in_mode(&mut self, hold: u64, wanted: Mode) -> &mut Self {
        for (.., event) in &mut self.events {
            if let Event::Acquire { attempt: HoldId(id), mode, .. } = event
                && *id == hold
            {
                *mode = wanted;
            }
        }
        self
    }

    /// Gives all attempts of a worker another key.
    pub fn of_key(&mut self, worker: u32, name: &str) -> &mut Self {
        for (.., event) in &mut self.events {
            if let Event::Acquire { client, key, .. } = event
                && client.0 + 1 == worker
            {
                *key = name.into();
            }
        }
        self
    }

    /// Gives one attempt another key.
    pub fn with_key(&mut self, attempt: u64, name: &str) -> &mut Self {
        for (.., event) in &mut self.events {
            if let Event::Acquire { attempt: id, key, .. } = event
                && *id == HoldId(attempt)
            {
                *key = name.into();
            }
        }
        self
    }

    /// Makes the key of a hold a child of `k0`, under another hold of its client. All data is that of the child.
    pub fn of_child(&mut self, hold: u64, under: Option<u64>) -> &mut Self {
        (self.plan.workload.keys, self.plan.workload.hierarchy) = (2, 0.5);
        for (.., event) in &mut self.events {
            if let Event::Acquire { attempt: HoldId(id), key, above, .. } = event
                && *id == hold
            {
                (*key, *above) = (Key::numbered(1), under.map(HoldId));
            }
        }
        self
    }

    /// The lease that was granted to the hold that was acquired last.
    pub fn with_lease(&mut self, lease: u64) -> &mut Self {
        if let Some((.., Event::Acquired { lease_ns, .. })) = self.events.last_mut() {
            *lease_ns = lease * 1_000_000;
        }
        self
    }

    /// The time for which the client of the hold that was acquired last believed in it.
    pub fn believing(&mut self, valid: u64) -> &mut Self {
        if let Some((.., Event::Acquired { valid_ns, .. })) = self.events.last_mut() {
            *valid_ns = valid * 1_000_000;
        }
        self
    }
}
