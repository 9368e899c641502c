//! Model rewrites. The owner of an engine applies them before it registers a request: [`crate::ModelName`] has both names.

use alloc::string::String;
use alloc::vec::Vec;

/// A model rewrite: the model servers are asked for one of `targets` instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewrite {
    /// A glob of the models that clients ask for.
    pub model: String,
    /// At least one: the name of a model and its weight, finite and above 0.
    pub targets: Vec<(String, f64)>,
}
