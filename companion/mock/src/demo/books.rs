//! Whether every request is accounted for: three counts of the same requests, made by the clients, by the companion
//! and by the servers, that must fit.
//!
//! Others may use the gateway meanwhile, by the command that the demo prints: they are told apart by their model and
//! tenant. Of others who borrowed the demo's model only the served ones are known, so then less is compared. A
//! request that failed without an answer may or may not have arrived.

use std::collections::BTreeMap;

use super::look::{Counts, Passed};
use super::tally::Tally;
use crate::mock_server::Stats;

/// Everything that was counted, when all is over.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    /// The demo's own clients.
    pub(super) clients: Vec<(&'static str, Tally)>,
    /// `None`: it doesn't answer.
    pub(super) companion: Option<Counts>,
    /// Its counts begin in the middle: they must fit in themselves, and are compared with no others.
    pub(super) companion_restarted: bool,
    pub(super) servers: Vec<Stats>,
    /// Requests that the servers answered in full, by tenant; others under their names.
    pub(super) served: BTreeMap<String, u64>,
}

impl Books {
    /// What doesn't fit, one line for each; empty: every request is accounted for.
    pub(super) fn misfits(&self) -> Vec<String> {
        let mut misfits = Misfits::default();
        let sent = self.clients(|t| t.sent);
        misfits.unless(self.clients(|t| t.served) > 0, || {
            format!("no request was served, of {sent} that were sent")
        });
        for (name, tally) in &self.clients {
            let (sent, ends) = (tally.sent, tally.ends());
            misfits.unless(sent == ends, || {
                format!("{name} sent {sent} requests, {ends} of them ended")
            });
        }
        self.compare_servers(&mut misfits);
        match &self.companion {
            Some(counts) => self.compare_companion(counts, &mut misfits),
            None => misfits
                .0
                .push("the companion doesn't answer, so its counts are missing".to_owned()),
        }
        misfits.0
    }

    /// Clients and servers, tenant by tenant.
    fn compare_servers(&self, misfits: &mut Misfits) {
        for (name, tally) in &self.clients {
            let (got, gave) = (tally.served, self.served.get(*name).copied().unwrap_or(0));
            let fits = gave >= got && gave <= got + tally.cut + tally.failed;
            misfits.unless(fits, || {
                format!("{name} got {got} answers, the servers gave it {gave}")
            });
        }
        let total = self.servers(|s| s.served);
        let (in_flight, named) = (self.servers(|s| s.in_flight), self.served.values().sum::<u64>());
        misfits.unless(total == named, || {
            format!("the servers served {total} requests, {named} by tenant")
        });
        misfits.unless(in_flight == 0, || {
            format!("{in_flight} requests are still at the servers")
        });
    }

    /// The companion's counts in themselves, and with the clients' and the servers'.
    fn compare_companion(&self, counts: &Counts, misfits: &mut Misfits) {
        let (arrivals, waiting, stock) = (counts.all.arrivals, counts.waiting, counts.stock);
        let outcomes: u64 = counts.all.outcomes.values().sum();
        misfits.unless(arrivals == outcomes + waiting, || {
            format!("the companion counts {arrivals} arrivals, but {outcomes} outcomes and {waiting} waiting")
        });
        misfits.unless(waiting == 0, || {
            format!("{waiting} requests still wait in the queue")
        });
        misfits.unless(stock == 0, || {
            format!("the companion still counts a stock of {stock}")
        });

        if !self.companion_restarted {
            self.compare_with_companion(counts, misfits);
        }
    }

    fn compare_with_companion(&self, counts: &Counts, misfits: &mut Misfits) {
        let (sent, unclear, borrowed) = (self.clients(|t| t.sent), self.unclear(), self.borrowed(counts));
        let (arrivals, least) = (
            counts.demo.arrivals,
            sent.saturating_sub(self.clients(|t| t.failed)),
        );
        misfits.unless(arrivals >= least && (borrowed || arrivals <= sent), || {
            format!("the clients sent {sent} requests, the companion counts {arrivals} arrivals of them")
        });

        let (admitted, reached) = (
            counts.all.admitted(),
            self.servers(|s| s.served + s.cancelled + s.refused),
        );
        // One that was cut may have been sent to a second server, or to none.
        misfits.unless(admitted.abs_diff(reached) <= unclear, || {
            format!("the companion admitted {admitted} requests, {reached} reached the servers")
        });
        if !borrowed && unclear == 0 {
            self.compare_outcomes(&counts.demo, misfits);
        }
    }

    /// Without others and failures, clients and companion must agree outcome by outcome.
    fn compare_outcomes(&self, counts: &Passed, misfits: &mut Misfits) {
        // What the clients saw, beside what the companion counts.
        let mut both: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (outcome, count) in self.clients.iter().flat_map(|(_, tally)| &tally.outcomes) {
            both.entry(outcome).or_default().0 += count;
        }
        for (outcome, count) in &counts.outcomes {
            both.entry(outcome).or_default().1 += count;
        }
        for (name, (seen, counted)) in both {
            misfits.unless(seen == counted, || {
                format!("{name}: the clients saw {seen}, the companion counts {counted}")
            });
        }
    }

    fn clients(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.clients.iter().map(|(_, tally)| of(tally)).sum()
    }

    fn servers(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        self.servers.iter().map(of).sum()
    }

    /// Requests of which the clients don't know what became of them at the servers.
    fn unclear(&self) -> u64 {
        self.clients(|t| t.cut + t.failed)
    }

    /// Others used the demo's model: the servers answered more of them than there were under other models.
    fn borrowed(&self, counts: &Counts) -> bool {
        let ours = |name: &str| self.clients.iter().any(|(ours, _)| *ours == name);
        let served = self.served.iter().filter(|(name, _)| !ours(name));
        let others: u64 = served.map(|(_, count)| count).sum();
        others > counts.all.admitted() - counts.demo.admitted()
    }
}

#[derive(Default)]
struct Misfits(Vec<String>);

impl Misfits {
    fn unless(&mut self, fits: bool, say: impl FnOnce() -> String) {
        if !fits {
            self.0.push(say());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demo::client::Ending;

    /// Two tenants: `a` was served three times, `b` once and refused once.
    fn fitting() -> Books {
        let served = |outcome: &str| Ending::Served {
            outcome: outcome.to_owned(),
            ttft: Duration::from_millis(1),
            input: 1,
            output: 1,
        };
        let refused = Ending::Refused {
            outcome: "rejected_flow_capacity".to_owned(),
            status: 503,
            retry_after: None,
        };
        let tally = |endings: Vec<Ending>| {
            let mut tally = Tally::default();
            for ending in endings {
                tally.sent();
                tally.ended(ending, true);
            }
            tally
        };
        let a = tally(vec![
            served("bypassed"),
            served("dispatched"),
            served("dispatched"),
        ]);
        let b = tally(vec![served("bypassed"), refused]);
        let outcomes = [("bypassed", 2), ("dispatched", 2), ("rejected_flow_capacity", 1)];
        let passed = Passed {
            arrivals: 5,
            outcomes: outcomes.map(|(name, count)| (name.to_owned(), count)).into(),
        };
        Books {
            clients: vec![("a", a), ("b", b)],
            companion_restarted: false,
            companion: Some(Counts {
                all: passed.clone(),
                demo: passed,
                waiting: 0,
                stock: 0,
            }),
            servers: vec![
                Stats {
                    served: 3,
                    peak: 2,
                    ..Stats::default()
                },
                Stats {
                    served: 1,
                    ..Stats::default()
                },
            ],
            served: [("a".to_owned(), 3), ("b".to_owned(), 1)].into(),
        }
    }

    fn counts(books: &mut Books) -> &mut Counts {
        books.companion.as_mut().unwrap()
    }

    /// One more request for the demo's model, or for another, with this outcome.
    fn passed(books: &mut Books, demo: bool, outcome: &str) {
        let Counts { all, demo: ours, .. } = counts(books);
        for passed in [Some(all), demo.then_some(ours)].into_iter().flatten() {
            passed.arrivals += 1;
            *passed.outcomes.entry(outcome.to_owned()).or_default() += 1;
        }
    }

    /// The books after a change, which must be noticed.
    fn noticed(change: impl FnOnce(&mut Books)) -> String {
        let mut books = fitting();
        change(&mut books);
        let misfits = books.misfits();
        assert!(!misfits.is_empty());
        misfits.join("\n")
    }

    #[test]
    fn books_that_fit_have_no_misfits() {
        assert_eq!(fitting().misfits(), Vec::<String>::new());
    }

    #[test]
    fn each_number_that_does_not_fit_is_named() {
        assert!(noticed(|b| b.clients[0].1.sent += 1).contains("a sent 4 requests, 3 of them ended"));
        assert!(noticed(|b| counts(b).all.arrivals += 1).contains("6 arrivals, but 5 outcomes"));
        assert!(noticed(|b| counts(b).stock = 1).contains("a stock of 1"));
        assert!(noticed(|b| counts(b).waiting = 1).contains("1 requests still wait"));
        assert!(noticed(|b| b.servers[0].in_flight = 1).contains("still at the servers"));
        assert!(noticed(|b| b.servers[0].cancelled = 1).contains("admitted 4 requests, 5 reached"));
        assert!(noticed(|b| b.companion = None).contains("the companion doesn't answer"));
        assert!(noticed(|b| counts(b).demo.arrivals = 4).contains("the companion counts 4 arrivals of them"));
        assert!(
            noticed(|b| passed(b, true, "cancelled")).contains("the companion counts 6 arrivals of them")
        );
        assert!(
            noticed(|b| {
                b.servers[0].served = 2;
                b.served.insert("a".to_owned(), 2);
            })
            .contains("a got 3 answers, the servers gave it 2")
        );
        assert!(
            noticed(|b| {
                counts(b).demo.outcomes.insert("bypassed".to_owned(), 3);
                counts(b).demo.outcomes.insert("dispatched".to_owned(), 1);
            })
            .contains("bypassed: the clients saw 2, the companion counts 3")
        );
    }

    #[test]
    fn others_may_use_the_gateway_too() {
        let mut books = fitting();
        books.served.insert("you".to_owned(), 1);
        books.servers[1].served += 1;
        books.servers[0].cancelled += 1;
        for outcome in ["bypassed", "dispatched", "cancelled", "rejected_invalid"] {
            passed(&mut books, false, outcome);
        }
        assert_eq!(books.misfits(), Vec::<String>::new());
        counts(&mut books).demo.arrivals -= 1;
        assert_ne!(books.misfits(), Vec::<String>::new());
    }

    #[test]
    fn a_companion_that_was_started_again_must_fit_in_itself() {
        let mut books = fitting();
        let begun = Passed {
            arrivals: 1,
            outcomes: [("bypassed".to_owned(), 1)].into(),
        };
        counts(&mut books).all = begun.clone();
        counts(&mut books).demo = begun;
        assert_ne!(books.misfits(), Vec::<String>::new());
        books.companion_restarted = true;
        assert_eq!(books.misfits(), Vec::<String>::new());
        counts(&mut books).stock = 1;
        assert_ne!(books.misfits(), Vec::<String>::new());
    }

    #[test]
    fn others_may_borrow_the_demos_model() {
        let mut books = fitting();
        books.served.insert("you".to_owned(), 1);
        books.servers[1].served += 1;
        for outcome in ["bypassed", "expired_ttl"] {
            passed(&mut books, true, outcome);
        }
        assert_eq!(books.misfits(), Vec::<String>::new());
    }

    #[test]
    fn a_request_that_failed_may_have_arrived_or_not() {
        for arrived in [false, true] {
            let mut books = fitting();
            let why = "connection refused".to_owned();
            books.clients[0].1.sent();
            books.clients[0].1.ended(Ending::Failed { why }, true);
            if arrived {
                passed(&mut books, true, "cancelled");
            }
            assert_eq!(books.misfits(), Vec::<String>::new(), "arrived: {arrived}");
        }
    }
}
