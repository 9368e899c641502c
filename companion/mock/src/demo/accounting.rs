//! The final check of the demo: the counts of the clients, the companion and the servers must agree, so that every
//! request is accounted for.
//!
//! Other clients may use the gateway at the same time, for example with the command that the demo prints. Their model
//! and tenant distinguish them. If they use the demo's model, only their served requests can be recognized, so fewer
//! counts are compared. A request that failed without a response may or may not have arrived.

use std::collections::BTreeMap;

use super::companion::{Counts, RequestCounts};
use super::tally::Tally;
use crate::mock_server::Stats;

/// All counts at the end of the demo.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounting {
    /// By tenant, the counts of the demo's own clients.
    pub(super) clients: Vec<(&'static str, Tally)>,
    /// The companion's counts; `None` if it doesn't answer.
    pub(super) companion: Option<Counts>,
    /// The companion was restarted, so its counts are incomplete. They must be consistent, but aren't compared with
    /// the others.
    pub(super) companion_restarted: bool,
    pub(super) servers: Vec<Stats>,
    /// By tenant, the requests that the servers served completely, including other clients' requests.
    pub(super) served: BTreeMap<String, u64>,
}

impl Accounting {
    /// One line for each mismatch; empty if every request is accounted for.
    pub(super) fn mismatches(&self) -> Vec<String> {
        let mut mismatches = Mismatches::default();
        let sent = self.clients(|tally| tally.sent);
        mismatches
            .unless(self.clients(|tally| tally.served) > 0, || format!("none of {sent} requests was served"));
        for (name, tally) in &self.clients {
            let (sent, ends) = (tally.sent, tally.ends());
            mismatches.unless(sent == ends, || format!("{name} sent {sent} requests, but {ends} ended"));
        }
        self.compare_servers(&mut mismatches);
        match &self.companion {
            Some(counts) => self.compare_companion(counts, &mut mismatches),
            None => mismatches.0.push("the companion doesn't answer, so its counts are missing".to_owned()),
        }
        mismatches.0
    }

    /// Compares clients and servers, tenant by tenant.
    fn compare_servers(&self, mismatches: &mut Mismatches) {
        for (name, tally) in &self.clients {
            let (received, sent) = (tally.served, self.served.get(*name).copied().unwrap_or(0));
            let fits = sent >= received && sent <= received + tally.cut + tally.failed;
            mismatches.unless(fits, || {
                format!("{name} received {received} responses, but the servers sent {sent}")
            });
        }
        let total = self.servers(|stats| stats.served);
        let in_flight = self.servers(|stats| stats.in_flight);
        let by_tenant = self.served.values().sum::<u64>();
        mismatches.unless(total == by_tenant, || {
            format!("the servers served {total} requests, but {by_tenant} by tenant")
        });
        mismatches.unless(in_flight == 0, || format!("{in_flight} requests are still at the servers"));
    }

    /// Checks that the companion's counts are consistent, and compares them with clients and servers.
    fn compare_companion(&self, counts: &Counts, mismatches: &mut Mismatches) {
        let (arrivals, waiting, stock) = (counts.all.arrivals, counts.waiting, counts.stock);
        let outcomes: u64 = counts.all.outcomes.values().sum();
        mismatches.unless(arrivals == outcomes + waiting, || {
            format!("the companion counts {arrivals} arrivals, but {outcomes} outcomes and {waiting} waiting")
        });
        mismatches.unless(waiting == 0, || format!("{waiting} requests still wait in the queue"));
        mismatches.unless(stock == 0, || format!("the companion still counts a stock of {stock}"));

        if !self.companion_restarted {
            self.compare_with_companion(counts, mismatches);
        }
    }

    fn compare_with_companion(&self, counts: &Counts, mismatches: &mut Mismatches) {
        let sent = self.clients(|tally| tally.sent);
        let (uncertain, shared) = (self.uncertain(), self.is_model_shared(counts));
        let arrivals = counts.demo.arrivals;
        let min = sent.saturating_sub(self.clients(|tally| tally.failed));
        mismatches.unless(arrivals >= min && (shared || arrivals <= sent), || {
            format!("the clients sent {sent} requests, but the companion counts {arrivals} arrivals")
        });

        let admitted = counts.all.admitted();
        let reached = self.servers(|stats| stats.served + stats.cancelled + stats.refused);
        // A request whose response was cut may have reached two servers or none.
        mismatches.unless(admitted.abs_diff(reached) <= uncertain, || {
            format!("the companion admitted {admitted} requests, but {reached} reached the servers")
        });
        if !shared && uncertain == 0 {
            self.compare_outcomes(&counts.demo, mismatches);
        }
    }

    /// Compares clients and companion outcome by outcome. Only possible without failures and other clients.
    fn compare_outcomes(&self, counts: &RequestCounts, mismatches: &mut Mismatches) {
        // By outcome, the clients' count and the companion's.
        let mut both: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (outcome, count) in self.clients.iter().flat_map(|(_, tally)| &tally.outcomes) {
            both.entry(outcome).or_default().0 += count;
        }
        for (outcome, count) in &counts.outcomes {
            both.entry(outcome).or_default().1 += count;
        }
        for (name, (seen, counted)) in both {
            mismatches.unless(seen == counted, || {
                format!("{name}: the clients count {seen}, but the companion counts {counted}")
            });
        }
    }

    /// A sum over the tenants.
    fn clients(&self, count: impl Fn(&Tally) -> u64) -> u64 {
        self.clients.iter().map(|(_, tally)| count(tally)).sum()
    }

    /// A sum over the servers.
    fn servers(&self, count: impl Fn(&Stats) -> u64) -> u64 {
        self.servers.iter().map(count).sum()
    }

    /// Requests that may or may not have reached a server.
    fn uncertain(&self) -> u64 {
        self.clients(|tally| tally.cut + tally.failed)
    }

    /// Whether other clients used the demo's model: the servers served more of their requests than other models had.
    fn is_model_shared(&self, counts: &Counts) -> bool {
        let is_demo = |name: &str| self.clients.iter().any(|(tenant, _)| *tenant == name);
        let served = self.served.iter().filter(|(name, _)| !is_demo(name));
        let by_others: u64 = served.map(|(_, count)| count).sum();
        by_others > counts.all.admitted() - counts.demo.admitted()
    }
}

#[derive(Default)]
struct Mismatches(Vec<String>);

impl Mismatches {
    fn unless(&mut self, fits: bool, line: impl FnOnce() -> String) {
        if !fits {
            self.0.push(line());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demo::client::Ending;

    /// Two tenants: `a` was served three times, `b` was served once and refused once.
    fn matching() -> Accounting {
        let served = |outcome: &str| Ending::Served {
            outcome: outcome.to_owned(),
            ttft: Duration::from_millis(1),
            input: 1,
            output: 1,
        };
        let refused =
            Ending::Refused { outcome: "rejected_flow_capacity".to_owned(), status: 503, retry_after: None };
        let tally = |endings: Vec<Ending>| {
            let mut tally = Tally::default();
            for ending in endings {
                tally.sent();
                tally.ended(ending, true);
            }
            tally
        };
        let a = tally(vec![served("bypassed"), served("dispatched"), served("dispatched")]);
        let b = tally(vec![served("bypassed"), refused]);
        let outcomes = [("bypassed", 2), ("dispatched", 2), ("rejected_flow_capacity", 1)];
        let passed = RequestCounts {
            arrivals: 5,
            outcomes: outcomes.map(|(name, count)| (name.to_owned(), count)).into(),
        };
        Accounting {
            clients: vec![("a", a), ("b", b)],
            companion_restarted: false,
            companion: Some(Counts { all: passed.clone(), demo: passed, waiting: 0, stock: 0 }),
            servers: vec![
                Stats { served: 3, peak: 2, ..Stats::default() },
                Stats { served: 1, ..Stats::default() },
            ],
            served: [("a".to_owned(), 3), ("b".to_owned(), 1)].into(),
        }
    }

    fn counts(accounting: &mut Accounting) -> &mut Counts {
        accounting.companion.as_mut().unwrap()
    }

    /// Adds a request of this outcome, for the demo's model or another one, to the companion's counts.
    fn add_request(accounting: &mut Accounting, demo_model: bool, outcome: &str) {
        let Counts { all, demo, .. } = counts(accounting);
        for passed in [Some(all), demo_model.then_some(demo)].into_iter().flatten() {
            passed.arrivals += 1;
            *passed.outcomes.entry(outcome.to_owned()).or_default() += 1;
        }
    }

    fn mismatches_after(change: impl FnOnce(&mut Accounting)) -> String {
        let mut accounting = matching();
        change(&mut accounting);
        let mismatches = accounting.mismatches();
        assert!(!mismatches.is_empty());
        mismatches.join("\n")
    }

    #[test]
    fn matching_counts_have_no_mismatches() {
        assert_eq!(matching().mismatches(), Vec::<String>::new());
    }

    #[test]
    fn each_mismatch_names_its_counts() {
        assert!(mismatches_after(|b| b.clients[0].1.sent += 1).contains("a sent 4 requests, but 3 ended"));
        assert!(mismatches_after(|b| counts(b).all.arrivals += 1).contains("6 arrivals, but 5 outcomes"));
        assert!(mismatches_after(|b| counts(b).stock = 1).contains("a stock of 1"));
        assert!(mismatches_after(|b| counts(b).waiting = 1).contains("1 requests still wait"));
        assert!(mismatches_after(|b| b.servers[0].in_flight = 1).contains("still at the servers"));
        assert!(
            mismatches_after(|b| b.servers[0].cancelled = 1).contains("admitted 4 requests, but 5 reached")
        );
        assert!(mismatches_after(|b| b.companion = None).contains("the companion doesn't answer"));
        assert!(
            mismatches_after(|b| counts(b).demo.arrivals = 4).contains("the companion counts 4 arrivals")
        );
        assert!(
            mismatches_after(|b| add_request(b, true, "cancelled"))
                .contains("the companion counts 6 arrivals")
        );
        assert!(
            mismatches_after(|b| {
                b.servers[0].served = 2;
                b.served.insert("a".to_owned(), 2);
            })
            .contains("a received 3 responses, but the servers sent 2")
        );
        assert!(
            mismatches_after(|b| {
                counts(b).demo.outcomes.insert("bypassed".to_owned(), 3);
                counts(b).demo.outcomes.insert("dispatched".to_owned(), 1);
            })
            .contains("bypassed: the clients count 2, but the companion counts 3")
        );
    }

    #[test]
    fn other_clients_requests_are_accounted_for() {
        let mut accounting = matching();
        accounting.served.insert("you".to_owned(), 1);
        accounting.servers[1].served += 1;
        accounting.servers[0].cancelled += 1;
        for outcome in ["bypassed", "dispatched", "cancelled", "rejected_invalid"] {
            add_request(&mut accounting, false, outcome);
        }
        assert_eq!(accounting.mismatches(), Vec::<String>::new());
        counts(&mut accounting).demo.arrivals -= 1;
        assert_ne!(accounting.mismatches(), Vec::<String>::new());
    }

    #[test]
    fn restarted_companions_counts_must_be_consistent() {
        let mut accounting = matching();
        let partial = RequestCounts { arrivals: 1, outcomes: [("bypassed".to_owned(), 1)].into() };
        counts(&mut accounting).all = partial.clone();
        counts(&mut accounting).demo = partial;
        assert_ne!(accounting.mismatches(), Vec::<String>::new());
        accounting.companion_restarted = true;
        assert_eq!(accounting.mismatches(), Vec::<String>::new());
        counts(&mut accounting).stock = 1;
        assert_ne!(accounting.mismatches(), Vec::<String>::new());
    }

    #[test]
    fn other_clients_may_use_the_demos_model() {
        let mut accounting = matching();
        accounting.served.insert("you".to_owned(), 1);
        accounting.servers[1].served += 1;
        for outcome in ["bypassed", "expired_ttl"] {
            add_request(&mut accounting, true, outcome);
        }
        assert_eq!(accounting.mismatches(), Vec::<String>::new());
    }

    #[test]
    fn failed_request_may_have_arrived_or_not() {
        for arrived in [false, true] {
            let mut accounting = matching();
            let why = "connection refused".to_owned();
            accounting.clients[0].1.sent();
            accounting.clients[0].1.ended(Ending::Failed { why }, true);
            if arrived {
                add_request(&mut accounting, true, "cancelled");
            }
            assert_eq!(accounting.mismatches(), Vec::<String>::new(), "arrived: {arrived}");
        }
    }
}
