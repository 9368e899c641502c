//! `penstock model` as its user meets it: the reference cases, recordings with known parameters, and what it says to
//! input that is wrong.

mod analyze;
mod fit;
mod forms;
mod recording;
mod run;
