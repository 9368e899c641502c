//! The election of a leader among several companions with the same configuration: one companion's part in it.
//!
//! A lease in a store (etcd, a Kubernetes Lease or a locked file) decides which companion leads. The leader renews the
//! lease, and leaves a [`Record`] in the store for its successor. The filters hold the truth about requests, so nothing
//! else needs a store.
//!
//! Pure: a [`Candidate`] takes views of the store, answers to its requests and reports of the control as inputs, and
//! returns requests to the store and changes of its role as outputs. Time is an argument.

mod candidate;
mod limits;
mod messages;
mod preference;
mod record;

pub use self::candidate::{Candidate, Settings};
pub use self::limits::{ENVOYS_MAX, PICKERS_MAX};
pub use self::messages::{
    Answer, Holder, Input, Output, Report, Request, Role, RoleChange, RoleStatus, View,
};
pub use self::preference::{prefers, score};
pub use self::record::{KnownEnvoy, Pickers, Record};
