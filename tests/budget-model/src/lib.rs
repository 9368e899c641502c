//! The reference model of budgets: windows and the calendar as the documentation describes them, computed step by step.
//!
//! The engine's own tests and the accounts of the simulated world use it. It knows nothing of the engine, and shares no code with it: amounts
//! and times are plain numbers.

mod calendar;
mod window;

pub use self::calendar::{Calendar, day_of, first_day, first_day_of_week, month_of, week_of};
pub use self::window::{Settled, Window, steps};
