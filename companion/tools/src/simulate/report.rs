//! The report of a simulation: one HTML file that loads nothing else.

mod axis;
mod bars;
mod figures;
mod html;
mod lines;
mod page;

pub(super) use self::page::html;
