//! Tests of one window, and a comparison with one that moves step by step.

use alloc::vec;
use alloc::vec::Vec;

use penstock_budget_model::Window as Slow;
use proptest::prelude::*;
use proptest::sample::Index;

use super::{Counted, Window};

#[test]
fn a_request_goes_while_anything_is_left_and_the_excess_is_paid_before_the_next_one() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 99);
    assert_eq!(window.room(), 1);
    window.reserve(1, 151);
    assert_eq!((window.room(), window.debt()), (0, 150));
    assert_eq!(window.has_room_in(), Some(20), "the first step pays 99, the second 1, the first again 50");
    window.advance(19);
    assert_eq!((window.room(), window.debt()), (0, 50));
    window.advance(20);
    assert_eq!((window.room(), window.debt()), (49, 0));
}

#[test]
fn an_estimate_is_corrected_in_the_step_of_its_dispatch() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 60);
    assert_eq!((window.used(), window.reserved()), (0, 60));
    window.advance(5);
    window.settle(0, 60, 0, 20, 0);
    assert_eq!((window.used(), window.reserved(), window.room()), (20, 0, 80));
    window.advance(9);
    assert_eq!(window.used(), 20);
    window.advance(10);
    assert!(window.is_empty());
}

#[test]
fn what_runs_longer_than_the_window_counts_its_excess_when_it_is_settled() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 60);
    window.advance(30);
    assert_eq!(window.room(), 100);
    window.settle(0, 60, 0, 400, 0);
    assert_eq!((window.used(), window.room(), window.debt()), (340, 0, 240));
}

#[test]
fn a_refund_takes_back_everything_also_after_a_part_of_it_was_paid() {
    for later in [0, 9, 10, 25, 60] {
        let mut window = Window::new(100, 10, 0);
        window.reserve(0, 1_000);
        window.advance(later);
        window.settle(0, 1_000, 0, 0, 0);
        assert_eq!((window.room(), window.used(), window.debt()), (100, 0, 0), "after {later}");
        assert!(window.is_empty(), "after {later}");
    }
}

#[test]
fn a_window_of_one_step_starts_with_the_debt_of_the_last_one() {
    let mut day = Window::new(100, 1, 0);
    day.reserve(0, 250);
    day.settle(0, 250, 0, 250, 0);
    assert_eq!((day.has_room_in(), day.is_empty_in()), (Some(2), 3));
    day.advance(1);
    assert_eq!((day.used(), day.room()), (150, 0));
    day.advance(2);
    assert_eq!((day.used(), day.room()), (50, 50));
    day.advance(3);
    assert!(day.is_empty());
}

#[test]
fn a_huge_debt_and_a_long_idle_time_take_no_longer() {
    let mut window = Window::new(1, 60, 0);
    window.reserve(0, 1 << 40);
    window.settle(0, 1 << 40, 0, 1 << 40, 0);
    assert_eq!(window.has_room_in(), Some((1 << 40) * 60));
    window.advance((1 << 39) * 60);
    assert_eq!((window.room(), window.debt()), (0, (1 << 39) - 1));
    window.advance(i64::MAX);
    assert!(window.is_empty());
}

#[test]
fn a_top_up_is_room_now_and_ends_with_the_window() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 130);
    window.top_up(0, 50);
    assert_eq!((window.room(), window.debt()), (20, 0), "the debt is paid by it first");
    window.advance(3);
    assert_eq!(window.reserve(3, 15), 15);
    assert_eq!(window.room(), 5);
    window.settle(3, 15, 15, 5, 0);
    assert_eq!(window.room(), 15, "what was reserved of it comes back");
    window.advance(9);
    assert_eq!(window.room(), 15);
    window.advance(10);
    assert_eq!(window.room(), 100);
}

#[test]
fn a_debt_that_a_top_up_pays_stays_in_what_was_used() {
    let mut window = Window::new(100, 10, 0);
    window.add_used(0, 130);
    assert_eq!((window.used(), window.debt()), (130, 30));
    window.top_up(0, 50);
    assert_eq!((window.used(), window.debt(), window.room()), (130, 0, 20));
}

#[test]
fn a_refund_goes_back_to_the_top_up_that_it_was_taken_from() {
    let mut window = Window::new(100, 10, 0);
    window.add_used(0, 60);
    window.top_up(0, 50);
    assert_eq!(window.reserve(0, 70), 50);
    assert_eq!(window.room(), 20);
    window.settle(0, 70, 50, 10, 0);
    assert_eq!((window.used(), window.room()), (70, 80));
    // Of the top-up, 10 were used; its other 40 end here, and the 60 of the same step still count.
    let mut ended = window.clone();
    ended.top_ups.advance(10);
    assert_eq!((ended.used(), ended.room()), (60, 40));
}

#[test]
fn a_refund_to_a_top_up_that_has_ended_gives_nothing() {
    let mut window = Window::new(100, 10, 0);
    window.top_up(0, 50);
    assert_eq!(window.reserve(9, 50), 50);
    window.advance(12);
    window.top_up(12, 30);
    window.reserve(12, 30);
    window.settle(9, 50, 50, 0, 0);
    assert_eq!(window.room(), 100, "the later top-up is used up");
}

#[test]
fn a_refund_of_a_debt_that_a_top_up_has_paid_goes_back_to_the_top_up() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 130);
    window.top_up(0, 50);
    window.settle(0, 130, 0, 120, 0);
    assert_eq!((window.room(), window.used()), (30, 120));
    window.advance(10);
    assert_eq!((window.room(), window.used()), (100, 0));
}

#[test]
fn a_top_up_from_before_ends_when_as_much_time_has_passed_since_then() {
    let mut window = Window::new(100, 10, 20);
    window.top_up(10, 30);
    assert_eq!(window.room(), 100, "it has ended");
    window.top_up(13, 30);
    window.advance(22);
    assert_eq!(window.room(), 130);
    window.advance(23);
    assert_eq!(window.room(), 100);
}

#[test]
fn a_top_up_that_ends_with_the_step_that_leaves_makes_no_room_in_it() {
    let mut window = Window::new(150, 9, 0);
    window.reserve(0, 50);
    window.advance(1);
    window.reserve(1, 100);
    window.top_up(0, 1);
    window.set_limit(100);
    assert_eq!(window.has_room_in(), Some(10), "in step 9 the limit is used, and the top-up has ended");
    window.advance(9);
    assert_eq!(window.room(), 0);
    window.advance(10);
    assert_eq!(window.room(), 100);
}

#[test]
fn a_reset_forgets_usage_and_debts_but_not_what_other_gateways_run() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 500);
    window.set_elsewhere(30);
    window.reset();
    assert_eq!((window.room(), window.used(), window.debt()), (70, 0, 0));
}

#[test]
fn what_other_gateways_run_leaves_less_room_until_it_ends() {
    let mut window = Window::new(100, 10, 0);
    window.set_elsewhere(100);
    assert_eq!((window.room(), window.has_room_in()), (0, None));
    window.add_used(-20, 70);
    window.add_used(-3, 70);
    window.set_elsewhere(40);
    assert_eq!((window.room(), window.used(), window.reserved()), (0, 70, 40));
    assert_eq!(window.has_room_in(), Some(7));
}

#[test]
fn another_limit_keeps_what_was_used() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 150);
    window.set_limit(140);
    assert_eq!((window.used() + window.reserved(), window.debt()), (150, 10));
    window.set_limit(200);
    assert_eq!((window.room(), window.debt()), (50, 0));
    window.set_limit(20);
    assert_eq!((window.room(), window.has_room_in()), (0, Some(10)));
    window.advance(10);
    assert_eq!(window.room(), 20);
}

#[test]
fn of_a_request_that_has_outlived_the_window_what_it_still_fills_and_owes_counts() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 99);
    window.reserve(1, 301);
    window.advance(11);
    assert_eq!((window.room(), window.debt()), (0, 200), "100 were paid");
    let first = window.settle(0, 99, 0, 99, 301);
    assert_eq!(first, Counted::Later(vec![]), "the other request is why all of it is owed");
    window.advance(12);
    let second = window.settle(1, 301, 0, 311, 0);
    let expected = vec![(10, 99), (11, 1), (12, 200 + 10)];
    assert_eq!(second, Counted::Later(expected), "paid, owed, and used beyond the estimate");
    let mut elsewhere = Window::new(100, 10, 12);
    for (step, amount) in [(10, 99), (11, 1), (12, 210)] {
        elsewhere.add_used(step, amount);
    }
    for now in [12, 20, 21, 31, 50] {
        window.advance(now);
        elsewhere.advance(now);
        let amounts = |window: &Window| (window.used(), window.room(), window.debt());
        assert_eq!(amounts(&window), amounts(&elsewhere), "at {now}");
    }
}

#[test]
fn of_a_refunded_debt_only_what_was_used_counts_after_the_window() {
    let mut window = Window::new(100, 10, 0);
    window.reserve(0, 1_000);
    window.advance(15);
    let counted = window.settle(0, 1_000, 0, 180, 0);
    assert_eq!(counted, Counted::Later(vec![(10, 80)]), "100 counted in the window of the dispatch");
    assert_eq!((window.used(), window.debt()), (80, 0));
}

#[derive(Clone, Debug)]
enum Act {
    Advance(i64),
    Reserve(u64),
    Settle(Index, u64),
    AddUsed(i64, u64),
    AddDebt(u64),
    SetElsewhere(u64),
    /// So many steps ago.
    TopUp(i64, u64),
    SetLimit(u64),
    Reset,
}

/// Applies `act` to both. `running`: the steps and estimates of what runs, and what of them was taken from top-ups.
fn apply(window: &mut Window, slow: &mut Slow, running: &mut Vec<(i64, u64, u64)>, act: &Act) {
    match act {
        Act::Advance(steps) => {
            window.advance(slow.now + steps);
            slow.advance(slow.now + steps);
        }
        Act::Reserve(estimate) => {
            let of_top_ups = window.reserve(slow.now, *estimate);
            assert_eq!(slow.reserve(*estimate), of_top_ups);
            running.push((slow.now, *estimate, of_top_ups));
        }
        Act::Settle(which, real) => {
            if running.is_empty() {
                return;
            }
            let (step, estimate, of_top_ups) = running.swap_remove(which.index(running.len()));
            window.settle(step, estimate, of_top_ups, *real, 0);
            slow.settle(step, estimate, of_top_ups, *real, 0);
        }
        Act::AddUsed(ago, amount) => {
            window.add_used(slow.now - ago, *amount);
            slow.add_used(slow.now - ago, *amount);
        }
        Act::AddDebt(amount) => {
            window.add_debt(*amount);
            slow.add_debt(*amount);
        }
        Act::SetElsewhere(amount) => {
            window.set_elsewhere(*amount);
            slow.elsewhere = *amount;
        }
        Act::TopUp(ago, amount) => {
            window.top_up(slow.now - ago, *amount);
            slow.top_up(slow.now - ago, *amount);
        }
        Act::SetLimit(limit) => {
            window.set_limit(*limit);
            slow.set_limit(*limit);
        }
        Act::Reset => {
            window.reset();
            slow.reset();
            running.clear();
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0_i64..90).prop_map(Act::Advance),
        5 => (1_u64..400).prop_map(Act::Reserve),
        5 => (any::<prop::sample::Index>(), 0_u64..500).prop_map(|(which, real)| Act::Settle(which, real)),
        1 => (0_i64..30, 1_u64..200).prop_map(|(ago, amount)| Act::AddUsed(ago, amount)),
        1 => (0_u64..300).prop_map(Act::AddDebt),
        1 => (0_u64..150).prop_map(Act::SetElsewhere),
        1 => (0_i64..15, 0_u64..150).prop_map(|(ago, amount)| Act::TopUp(ago, amount)),
        1 => (1_u64..200).prop_map(Act::SetLimit),
        1 => Just(Act::Reset),
    ];
    prop::collection::vec(act, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    #[test]
    fn a_window_counts_like_one_that_moves_step_by_step(
        limit in 1_u64..150,
        kept in 1_i64..12,
        acts in acts(),
    ) {
        let mut window = Window::new(limit, kept, 0);
        let mut slow = Slow::new(limit, kept, 0);
        let mut running = Vec::new();
        for act in acts {
            apply(&mut window, &mut slow, &mut running, &act);
            prop_assert_eq!(window.room(), slow.room(), "after {:?}", act);
            prop_assert_eq!(window.debt(), slow.debt, "after {:?}", act);
            prop_assert_eq!(window.used(), slow.used(), "after {:?}", act);
            prop_assert_eq!(window.is_empty_in(), slow.is_empty_in(), "after {:?}", act);
            let (found, slowly) = (window.has_room_in(), slow.has_room_in());
            if slow.elsewhere == 0 {
                prop_assert_eq!(found, slowly, "after {:?}", act);
            } else {
                prop_assert!(found <= slowly || slowly.is_none(), "never too late: {:?} {:?}", found, slowly);
                prop_assert!(found.is_none_or(|step| step > slow.now || slow.room() > 0));
            }
        }
    }

    #[test]
    fn over_any_aligned_windows_at_most_their_limits_and_one_request_are_used(
        limit in 1_u64..150,
        kept in 1_i64..12,
        requests in prop::collection::vec((0_i64..8, 1_u64..400, 1_u64..400), 1..120),
    ) {
        let mut window = Window::new(limit, kept, 0);
        let mut now = 0;
        let mut used = Vec::new();
        for (idle, estimate, real) in requests {
            now += idle;
            window.advance(now);
            if window.room() == 0 {
                continue;
            }
            window.reserve(now, estimate);
            window.settle(now, estimate, 0, real, 0);
            used.push((now, real));
        }
        for from in 0..=now {
            for windows in 1..=4 {
                let within = (from..from + windows * kept).collect::<Vec<_>>();
                let reals = || used.iter().filter(|(step, _)| within.contains(step)).map(|&(_, real)| real);
                let most = windows.unsigned_abs() * limit + reals().max().unwrap_or(0);
                prop_assert!(reals().sum::<u64>() <= most, "{windows} windows from {from}");
            }
        }
    }
}
