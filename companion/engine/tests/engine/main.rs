//! Tests of the engine by its effects, one subject a module. `reference` compares it with a slow model, `conformance` is one suite for all
//! disciplines, and `world` runs it in small random worlds.

extern crate alloc;

mod abandoned;
mod auto_gate;
mod bands;
mod budgets;
mod classes;
mod conformance;
mod credit;
mod disaggregation;
mod effects;
mod eviction;
mod extra_places;
mod extreme_allowances;
mod gate;
mod health;
mod limits;
mod max_rate;
mod outlier_ejection;
mod own_endpoints;
mod past_usage;
mod predicted_wait;
mod queue;
mod queue_position;
mod random;
mod reference;
mod relist;
mod retry;
mod scorers;
mod sequences;
mod shares;
mod support;
mod suspended;
mod usage_elsewhere;
mod usage_tallies;
mod vtc_counters;
mod world;
