//! Exact outputs: given this event at that time, these frames and observations, and nothing more.

mod autopilot;
mod counts;
mod envoys;
mod failures;
mod flows;
mod harness;
mod limits;
mod look;
mod orphans;
mod placed;
mod random;
mod reload;
mod requeue;
mod restart;
mod resync;
mod scraped;
mod sessions;
mod trust;
mod versions;
