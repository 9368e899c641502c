//! After a panic, which a host may catch, a worker's state may lack the end of an event.

use super::Worker;
use crate::exchange::Phase;
use crate::time::Instant;

impl Worker {
    /// Goes on after a panic. `lives`: whether the stream of this context is still there. Each companion gets a new list of the requests, and
    /// gives up or grants anew what it took for something else.
    pub fn recover(&mut self, now: Instant, lives: impl Fn(u32) -> bool) {
        let lost = self.exchanges.iter().filter(|(_, exchange)| !lives(exchange.context));
        let lost: Vec<u64> = lost.map(|(sequence, _)| *sequence).collect();
        for sequence in lost {
            self.lose(now, sequence);
        }
        self.sessions.relist(now);
    }

    /// The stream of a request has ended, and a panic kept the worker from learning how: no list has the request any more.
    pub fn abandon(&mut self, now: Instant, sequence: u64) {
        self.lose(now, sequence);
        self.sessions.relist(now);
    }

    /// Forgets a request without a report.
    fn lose(&mut self, now: Instant, sequence: u64) {
        let Some(exchange) = self.exchanges.remove(&sequence) else {
            return;
        };
        self.forget(sequence, &exchange);
        if let Phase::Granted(granted) = &exchange.phase {
            self.release(now, granted);
            self.silence_timers.end(sequence, granted);
        }
    }
}
