//! What the limits of a plan would have done to the requests of a log, without a server.
//!
//! This module is pure: lines and plans in, a report out. It uses the same algorithms as the stores. `cli::simulate` reads the
//! log and spreads the keys over threads.
//! - [`fields`], [`line`]: a line is cut by its format and becomes a request;
//! - [`order`]: requests are put in order of time;
//! - [`replay`]: each is decided by the plans;
//! - [`report`]: what came of it, as text, JSON, SVG and HTML.

pub mod fields;
pub mod line;
pub mod order;
pub mod replay;
pub mod report;
pub mod stamp;
