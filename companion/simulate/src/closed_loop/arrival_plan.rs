//! When the next request arrives, and which one it is.

use std::time::Duration;

use penstock_engine::Instant;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::traffic::{Arrivals, Drawn, Mix};

/// The arrivals of a run, up to the next one.
#[derive(Debug)]
pub(super) struct ArrivalPlan<'a> {
    arrivals: &'a Arrivals,
    /// Listed requests that have arrived.
    listed: usize,
    next: Option<Instant>,
}

impl<'a> ArrivalPlan<'a> {
    pub(super) const fn new(arrivals: &'a Arrivals) -> Self {
        Self { arrivals, listed: 0, next: None }
    }

    /// The next arrival that is planned.
    pub(super) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// All requests were listed, and all have arrived.
    pub(super) fn is_through(&self) -> bool {
        matches!(self.arrivals, Arrivals::Listed { .. }) && self.next.is_none()
    }

    /// Plans the first arrival, or the one after the request that arrived now.
    pub(super) fn plan(&mut self, now: Instant, rng: &mut ChaCha8Rng) {
        self.next = match self.arrivals {
            Arrivals::Listed { requests, .. } => {
                requests.get(self.listed).map(|planned| Instant::ZERO.after(planned.at))
            }
            Arrivals::Poisson(_) => self.next_of_process(now, rng),
            Arrivals::Closed { .. } => None,
        };
    }

    fn next_of_process(&self, mut from: Instant, rng: &mut ChaCha8Rng) -> Option<Instant> {
        loop {
            let (_, rate, end) = self.phase(from)?;
            if rate > 0.0 {
                let unit: f64 = rng.random();
                let wait = Duration::from_secs_f64(-(1.0 - unit).ln() / rate);
                if from.after(wait) < end {
                    return Some(from.after(wait));
                }
            }
            from = end;
        }
    }

    /// The request that arrives now.
    pub(super) fn take(&mut self, now: Instant, rng: &mut ChaCha8Rng) -> Option<Drawn> {
        if let Arrivals::Listed { requests, tenants } = self.arrivals {
            let planned = requests.get(self.listed)?;
            self.listed += 1;
            let tenant = &tenants[planned.tenant as usize];
            return Some(Drawn {
                kind: tenant.name.clone(),
                flow: tenant.flow.clone(),
                band: tenant.band,
                input: planned.input,
                output: planned.output,
            });
        }
        self.phase(now).map(|(mix, _, _)| mix.draw(rng))
    }

    /// The mix and the rate at this time, and the end of that phase.
    fn phase(&self, time: Instant) -> Option<(&'a Mix, f64, Instant)> {
        let Arrivals::Poisson(phases) = self.arrivals else {
            return None;
        };
        let whole: Duration = phases.iter().map(|phase| phase.duration).sum();
        let since = time.since(Instant::ZERO);
        let rounds = since.as_nanos() / whole.as_nanos().max(1);
        let mut end = Duration::from_nanos(u64::try_from(rounds * whole.as_nanos()).ok()?);
        for phase in phases {
            end += phase.duration;
            if since < end {
                return Some((&phase.mix, phase.rate, Instant::ZERO.after(end)));
            }
        }
        None
    }
}
