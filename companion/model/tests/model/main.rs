//! Tests of the queueing model and its estimators, one subject a module.

mod analysis;
mod edges;
mod learning;
mod left_out;
mod overlap_tracker;
mod vectors;
mod window_estimator;
mod world;
