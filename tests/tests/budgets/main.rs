//! Budgets, usage and learned models, and the stores in which they outlive a companion.

mod bounds;
mod budgets;
mod budgets_outlived;
mod budgets_store;
mod model;
mod restored_models;
mod usage_store;
