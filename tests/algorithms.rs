//! The algorithms: against models and bounds, the same in both stores, and on clocks that are set.

mod algorithm_bounds;
mod blocks;
mod calendar;
mod clocks;
mod holds;
mod joint;
mod oracle;
mod parity;
mod simulate;
mod undo;
