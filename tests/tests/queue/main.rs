//! Who waits and who is served, through a real Envoy: shares, order, limits, deadlines and credits.

mod cached_tokens;
mod cancel;
mod clients_leave;
mod credits;
mod disaggregation;
mod endpoint_constraints;
mod eviction;
mod flood_first;
mod idle_flows;
mod keep_alive;
mod leaving;
mod limits;
mod models;
mod order;
mod prefill;
mod refusals;
mod requests;
mod sequences;
mod shares;
mod source_systems;
mod volume;
mod waits;
