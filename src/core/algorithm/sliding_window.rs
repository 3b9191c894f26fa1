//! `sliding_window`: at most `quota` units in any interval of one window, in bounded memory.
//!
//! It is a `sliding_log` that keeps at most `precision + 1` runs. Time is cut into cells of `window / precision`. Once more
//! than `precision` runs are live, a charge joins the newest run if that is of the same cell. Once more than `precision + 1` are
//! live, all runs of one cell are merged. Runs are merged at the newest one's time. So no unit is freed early, and each less than
//! a cell late. It is exact as long as fewer than `precision` runs were live at once since the key was last empty. A window
//! overlaps at most `precision + 1` cells, which bounds the runs. Lua twin: `sliding_window.lua`.

use super::Runs;
use crate::plan::Limit;

pub(super) fn charge(runs: &mut Runs, limit: &Limit, precision: u8, now_us: u64, cost: u64) {
    let cell_us = limit.cell_us(precision);
    let same_cell = |a_us: u64, b_us: u64| a_us / cell_us == b_us / cell_us;
    runs.drop_expired(limit.window_us(), now_us);
    runs.push(now_us, cost);
    // Of a key that takes one unit in each cell, as many runs stay as a window overlaps cells, and nothing is merged.
    let precision = usize::from(precision);
    if runs.len() > precision && !runs.merge_newest(same_cell) && runs.len() > precision + 1 {
        runs.merge_all(same_cell);
    }
}

/// Gives back units of a charge, while it counts: those of its instant, or of the run that took them up, which is of its cell.
/// `times_us` are the present and the instant of the charge.
pub(super) fn undo(
    runs: &mut Runs,
    limit: &Limit,
    precision: u8,
    times_us: (u64, u64),
    units: u64,
) {
    let cell_us = limit.cell_us(precision);
    let same_cell = |at_us: u64| at_us / cell_us == times_us.1 / cell_us;
    take_back(runs, limit, times_us, units, same_cell);
}

/// Gives back units of the oldest run that is not older than a charge, while that counts. `times_us` as for [`undo`].
pub(super) fn give_back(runs: &mut Runs, limit: &Limit, times_us: (u64, u64), units: u64) {
    take_back(runs, limit, times_us, units, |_| true);
}

fn take_back(
    runs: &mut Runs,
    limit: &Limit,
    (now_us, instant_us): (u64, u64),
    units: u64,
    has_them: impl Fn(u64) -> bool,
) {
    if instant_us > now_us || instant_us + limit.window_us() <= now_us {
        return;
    }
    // As a charge would write them. They are written only if something is given back.
    let mut read = runs.clone();
    read.clamp(now_us);
    read.drop_expired(limit.window_us(), now_us);
    if read.take_back(limit, now_us, (instant_us, units), has_them) {
        *runs = read;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::cases::{Case, check, limit};
    use crate::plan::Algorithm;

    const PRECISION_4: Algorithm = Algorithm::SlidingWindow { precision: 4 };

    #[test]
    fn it_is_exact_while_few_runs_are_live() {
        check(
            &limit(3, PRECISION_4),
            &[
                Case::allowed(1_010_000, 1, 2),
                Case::allowed(1_020_000, 2, 0).fresh_in(1_000_000),
                Case::denied(2_009_999, 1, 0).retry_in(1),
                Case::allowed(2_010_000, 1, 0),
            ],
        );
    }

    /// Runs the rows on a key with a quota of six, all of which is used: four units in the first cell, and one in each of two more.
    fn check_after_six_charges(cases: impl IntoIterator<Item = Case>) {
        let at_us = [
            1_010_000, 1_020_000, 1_030_000, 1_040_000, 1_260_000, 1_510_000,
        ];
        let charges = at_us
            .into_iter()
            .zip((0..6).rev())
            .map(|(now_us, remaining)| Case::allowed(now_us, 1, remaining));
        check(
            &limit(6, PRECISION_4),
            &charges.chain(cases).collect::<Vec<_>>(),
        );
    }

    #[test]
    fn above_that_a_unit_leaves_with_the_newest_unit_of_its_cell() {
        check_after_six_charges([
            Case::denied(2_010_000, 1, 0).retry_in(30_000),
            Case::allowed(2_040_000, 4, 0),
        ]);
    }

    #[test]
    fn a_refund_takes_units_of_the_newest_run() {
        check_after_six_charges([
            Case::refunded(1_520_000, 1, 1).fresh_in(740_000),
            // By now the four oldest units are one run at 1.04 s.
            Case::refunded(1_520_000, 2, 3).fresh_in(520_000),
            Case::refunded(1_520_000, 3, 6).fresh_in(0),
        ]);
    }

    #[test]
    fn runs_stay_within_precision_plus_one() {
        let limit = limit(1_000_000, PRECISION_4);
        let mut runs = Runs::default();
        for now_us in (0..10_000_000).step_by(777) {
            charge(&mut runs, &limit, 4, now_us, 1);
            assert!(runs.len() <= 5);
        }
    }

    #[test]
    fn a_full_window_at_a_minute_s_end_leaves_nothing_right_after_it() {
        check(
            &limit(100, Algorithm::SlidingWindow { precision: 64 }),
            &[
                Case::allowed(999_999, 100, 0),
                Case::denied(1_000_000, 1, 0).retry_in(999_999),
            ],
        );
    }
}
