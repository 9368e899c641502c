//! The companion as an endpoint picker, asked by a real Envoy that loads no filter.

mod choices;
mod departure;
mod disaggregation;
mod eviction;
mod health;
mod leaving;
mod modes;
mod refusals;
mod successors;
mod takeover;
