//! Each rule of the election by itself.

use std::time::Duration;

use penstock_election::{
    Answer, Holder, Input, Output, Pickers, Record, Report, Request, Role, RoleChange, View,
};

use crate::harness::{Bench, DURATION, OTHER, OWN, UNIX_MS, envoys, others_record, stand_by};

const SECOND: Duration = Duration::from_secs(1);

fn renew(request: &Request) -> bool {
    matches!(request, Request::Renew { .. })
}

#[test]
fn grants_end_two_thirds_of_the_duration_after_the_request_was_sent() {
    let mut bench = Bench::new();
    bench.observe(Holder::None, None);
    let sent = bench.now();
    let record = bench.acquisition();
    assert_eq!((record.term, &*record.leader), (UNIX_MS, OWN));
    bench.pass(SECOND / 2);
    bench.done();
    let grants_until = sent.after(2 * SECOND);
    let (known, pickers) = (Vec::new(), Vec::new());
    let term = record.term;
    assert_eq!(
        bench.roles(),
        [RoleChange::Lead { term, known, pickers, is_last_leader_gone: true, grants_until }]
    );

    // The renewal is due a third of the duration after the acquisition was sent.
    bench.pass(SECOND / 2 - Duration::from_millis(1));
    assert_eq!(bench.outputs(), []);
    bench.pass(Duration::from_millis(1));
    assert!(renew(&bench.request()));
    bench.pass(SECOND / 2);
    bench.done();
    let grants_until = sent.after(3 * SECOND);
    assert_eq!(bench.roles(), [RoleChange::Renewed { term, grants_until }]);
}

#[test]
fn leader_whose_envoys_the_store_does_not_know_must_stop_without_the_store() {
    let (mut bench, term) = Bench::leader();
    let envoys = envoys(&[1]);
    bench.handle(Report::Known { term, envoys, pickers: Pickers::default() });
    assert!(matches!(bench.request(), Request::Write { .. }));
    bench.handle(Input::Answered(Answer::Failed));
    assert_eq!(bench.roles(), []);
}

#[test]
fn leader_without_a_filter_that_the_record_names_must_stop_without_the_store() {
    let (mut bench, term) = Bench::leader_of(&[1]);
    let mut envoys = envoys(&[1]);
    envoys[0].contexts -= 1;
    bench.handle(Report::Known { term, envoys, pickers: Pickers::default() });
    assert!(matches!(bench.request(), Request::Write { .. }));
    bench.handle(Input::Answered(Answer::Failed));
    assert_eq!(bench.roles(), []);
}

#[test]
fn an_answer_that_takes_too_long_counts_as_unreachable_and_the_request_is_sent_again() {
    let (mut bench, term) = Bench::leader_of(&[1]);
    bench.pass(SECOND);
    assert!(renew(&bench.request()));
    bench.pass(SECOND);
    let outputs = bench.outputs();
    assert_eq!(outputs[0], Output::Role(RoleChange::StoreUnreachable { recorded: envoys(&[1]) }));
    assert!(matches!(&outputs[1..], [Output::Request(request)] if renew(request)));
    // The failure is reported once.
    bench.handle(Input::Answered(Answer::Failed));
    assert_eq!(bench.outputs(), []);
    let sent = bench.now().after(DURATION / 12);
    bench.pass(DURATION / 12);
    assert!(renew(&bench.request()), "an immediate failure is tried again soon");
    bench.done();
    let grants_until = sent.after(2 * SECOND);
    assert_eq!(bench.roles(), [RoleChange::Renewed { term, grants_until }]);
    bench.pass(SECOND);
    assert!(renew(&bench.request()));
    bench.handle(Input::Answered(Answer::Failed));
    assert_eq!(bench.roles(), [RoleChange::StoreUnreachable { recorded: envoys(&[1]) }], "a new outage");
}

#[test]
fn a_suspended_process_asks_the_store_again_before_it_calls_it_unreachable() {
    let (mut bench, term) = Bench::leader();
    bench.pass(SECOND);
    assert!(renew(&bench.request()));
    bench.suspend(2 * DURATION);
    assert!(renew(&bench.request()), "and no other output");
    bench.done();
    let grants_until = bench.now().after(2 * SECOND);
    assert_eq!(bench.roles(), [RoleChange::Renewed { term, grants_until }]);
}

#[test]
fn one_request_is_outstanding_and_the_latest_envoys_are_written() {
    let (mut bench, term) = Bench::leader();
    for ids in [&[1][..], &[1, 2], &[1, 2, 3]] {
        bench.handle(Report::Known { term, envoys: envoys(ids), pickers: Pickers::default() });
    }
    assert_eq!(bench.written().envoys, envoys(&[1]));
    bench.done();
    assert_eq!(bench.written().envoys, envoys(&[1, 2, 3]));
    bench.done();
    assert_eq!(bench.outputs(), [], "a write is no renewal, and nothing else changed");
    bench.handle(Report::Known { term: term - 1, envoys: Vec::new(), pickers: Pickers::default() });
    assert_eq!(bench.outputs(), [], "a report of an earlier term");
}

#[test]
fn a_term_is_above_the_last_one_and_at_least_the_wall_clock() {
    let mut bench = Bench::new();
    bench.pass(SECOND);
    let vacant = |term| Record { term, ..Record::default() };
    bench.observe(Holder::None, Some(vacant(7)));
    assert_eq!(bench.acquisition().term, UNIX_MS + 1_000);

    let mut bench = Bench::new();
    bench.observe(Holder::None, Some(vacant(UNIX_MS + 5)));
    assert_eq!(bench.acquisition().term, UNIX_MS + 6);
    // Deleting the record doesn't lower the next term.
    bench.handle(Input::Answered(Answer::Failed));
    bench.observe(Holder::None, None);
    assert_eq!(bench.acquisition().term, UNIX_MS + 6);
}

#[test]
fn a_free_lease_is_taken_at_once_only_if_no_leader_can_be_in_charge() {
    let released = Record { released: true, leader: String::new(), ..others_record(5) };
    let without_envoys = Record { envoys: Vec::new(), ..others_record(5) };
    let own = Record { leader: OWN.into(), ..others_record(5) };
    for record in [None, Some(released.clone()), Some(without_envoys), Some(own)] {
        let mut bench = Bench::new();
        bench.observe(Holder::None, record);
        let acquired = bench.acquisition();
        assert_eq!(acquired.taking_over_from, None);
    }
    // The successor must count the requests of the Envoys of a leader that released the lease, too.
    let mut bench = Bench::new();
    bench.observe(Holder::None, Some(released));
    bench.acquisition();
    bench.done();
    assert!(matches!(&bench.roles()[..], [RoleChange::Lead { known, .. }] if *known == envoys(&[7, 8])));

    let mut bench = Bench::new();
    bench.observe(Holder::None, Some(others_record(5)));
    assert_eq!(bench.roles(), [stand_by(Some(OTHER), 5)], "the leader may only have lost the store");
    bench.pass(10 * DURATION);
    assert_eq!(bench.outputs(), []);
    bench.handle(Report::Wanted);
    let record = bench.acquisition();
    assert_eq!(record.taking_over_from.as_deref(), Some(OTHER));
    assert_eq!(record.envoys, envoys(&[7, 8]), "if this one fails, its successor needs them");
}

#[test]
fn a_wish_for_a_leader_waits_until_the_lease_expires_or_another_one_leads() {
    let mut bench = Bench::new();
    bench.observe(Holder::Other, Some(others_record(5)));
    bench.handle(Report::Wanted);
    assert_eq!(bench.roles(), [stand_by(Some(OTHER), 5)]);
    bench.observe(Holder::None, Some(others_record(5)));
    bench.acquisition();

    let mut bench = Bench::new();
    bench.observe(Holder::Other, Some(others_record(5)));
    bench.handle(Report::Wanted);
    bench.observe(Holder::Other, Some(others_record(6)));
    bench.observe(Holder::None, Some(others_record(6)));
    assert_eq!(
        bench.roles(),
        [stand_by(Some(OTHER), 5), stand_by(Some(OTHER), 6)],
        "filters can ask the new leader"
    );
}

#[test]
fn a_refused_acquisition_waits_for_the_next_view() {
    let mut bench = Bench::new();
    bench.observe(Holder::None, None);
    bench.acquisition();
    bench.handle(Input::Answered(Answer::Refused));
    assert_eq!(bench.outputs(), []);
    bench.observe(Holder::Other, Some(others_record(5)));
    assert_eq!(bench.roles(), [stand_by(Some(OTHER), 5)]);

    // The view may come before the answer.
    let mut bench = Bench::new();
    bench.observe(Holder::None, None);
    bench.acquisition();
    bench.observe(Holder::None, None);
    bench.handle(Input::Answered(Answer::Refused));
    bench.acquisition();
}

#[test]
fn an_acquisition_whose_answer_was_lost_is_completed_by_a_renewal() {
    let mut bench = Bench::new();
    bench.observe(Holder::None, None);
    let record = bench.acquisition();
    bench.handle(Input::Answered(Answer::Failed));
    let term = record.term;
    bench.observe(Holder::Me, Some(record));
    let outputs = bench.outputs();
    assert!(matches!(outputs.last(), Some(Output::Request(request)) if renew(request)));
    let grants_until = bench.now().after(2 * SECOND);
    bench.done();
    let (known, pickers) = (Vec::new(), Vec::new());
    assert_eq!(
        bench.roles(),
        [RoleChange::Lead { term, known, pickers, is_last_leader_gone: true, grants_until }]
    );
}

#[test]
fn a_view_that_is_older_than_the_last_answer_is_ignored() {
    let mut bench = Bench::new();
    bench.observe(Holder::None, None);
    bench.acquisition();
    bench.observe(Holder::None, None);
    bench.done();
    bench.roles();
    bench.handle(Input::Observed(View { holder: Holder::None, record: None, version: 2 }));
    assert_eq!(bench.outputs(), [], "the lease isn't lost");
}

#[test]
fn a_leader_whose_lease_expired_unused_takes_it_again_without_interruption() {
    let (mut bench, term) = Bench::leader_of(&[1]);
    let record = Record { term, leader: OWN.into(), envoys: envoys(&[1]), ..Record::default() };
    bench.observe(Holder::None, Some(record.clone()));
    let again = bench.acquisition();
    assert_eq!(again, Record { term: term + 1, ..record });
    bench.done();
    let grants_until = bench.now().after(2 * SECOND);
    let term = term + 1;
    assert_eq!(bench.roles(), [RoleChange::Renewed { term, grants_until }]);
    // Reports of the same leadership with the old term count.
    bench.handle(Report::Known { term: term - 1, envoys: envoys(&[1, 2]), pickers: Pickers::default() });
    assert_eq!(bench.written().term, term);
}

#[test]
fn a_leader_waits_while_another_one_tries_to_take_over() {
    let (mut bench, term) = Bench::leader_of(&[1]);
    let trying = Record {
        term: term + 9,
        leader: OTHER.into(),
        envoys: envoys(&[1]),
        taking_over_from: Some(OWN.into()),
        ..Record::default()
    };
    bench.observe(Holder::Other, Some(trying.clone()));
    bench.pass(2 * DURATION);
    assert_eq!(bench.outputs(), []);
    assert_eq!(bench.candidate.status().role, Role::Leader);
    // The other companion gives the lease back.
    let given_back = Record { leader: OWN.into(), taking_over_from: None, ..trying.clone() };
    bench.observe(Holder::None, Some(given_back));
    assert!(bench.acquisition().term > term + 9);
    bench.done();
    assert!(matches!(bench.roles()[..], [RoleChange::Renewed { .. }]));

    // Or its takeover is complete.
    let (mut bench, term) = Bench::leader_of(&[1]);
    bench.observe(Holder::Other, Some(trying.clone()));
    let complete = Record { taking_over_from: None, ..trying.clone() };
    bench.observe(Holder::Other, Some(complete));
    assert_eq!(bench.roles(), [stand_by(Some(OTHER), term + 9)]);

    // Or it fails: a takeover that may have been complete isn't undone.
    let (mut bench, term) = Bench::leader_of(&[1]);
    bench.observe(Holder::Other, Some(trying.clone()));
    bench.observe(Holder::None, Some(trying));
    assert_eq!(bench.roles(), [stand_by(Some(OTHER), term + 9)]);
    bench.handle(Report::Wanted);
    assert_eq!(bench.acquisition().taking_over_from.as_deref(), Some(OTHER));
}

#[test]
fn a_leader_that_others_succeeded_in_its_absence_stands_by() {
    for holder in [Holder::Other, Holder::None] {
        let (mut bench, term) = Bench::leader_of(&[1]);
        bench.observe(holder, Some(others_record(term + 1)));
        assert_eq!(bench.roles(), [stand_by(Some(OTHER), term + 1)]);
    }
    // A third companion takes over from the second one.
    let (mut bench, term) = Bench::leader_of(&[1]);
    let third = Record {
        leader: "10.0.0.3:9190".into(),
        taking_over_from: Some(OTHER.into()),
        ..others_record(term + 2)
    };
    bench.observe(Holder::Other, Some(third));
    assert_eq!(bench.roles(), [stand_by(Some("10.0.0.3:9190"), term + 2)]);
}

#[test]
fn a_leader_that_a_filter_refuses_stops_and_leads_again_only_with_a_higher_term() {
    let (mut bench, term) = Bench::leader_of(&[1]);
    bench.handle(Report::Superseded { term });
    assert_eq!(bench.outputs(), [], "its own term");
    bench.handle(Report::Superseded { term: term + 9 });
    let outputs = bench.outputs();
    assert_eq!(outputs[0], Output::Role(stand_by(None, term + 9)));
    let Output::Request(Request::Release { record, .. }) = &outputs[1] else {
        panic!("{outputs:?}");
    };
    assert!(record.released && record.term == term + 9);
    bench.done();
    assert_eq!(bench.acquisition().term, term + 10);

    // While another companion tries to take over, the filter's word decides.
    let (mut bench, term) = Bench::leader_of(&[1]);
    let trying = Record { taking_over_from: Some(OWN.into()), ..others_record(term + 9) };
    bench.observe(Holder::Other, Some(trying));
    bench.handle(Report::Superseded { term: term + 9 });
    assert_eq!(bench.roles(), [stand_by(Some(OTHER), term + 9)]);
}

#[test]
fn a_takeover_is_complete_when_the_control_reports_its_envoys() {
    let (mut bench, record) = Bench::takeover();
    bench.handle(Report::Known { term: record.term, envoys: envoys(&[7]), pickers: Pickers::default() });
    let written = bench.written();
    assert_eq!(written.taking_over_from, None);
    assert_eq!(written.envoys, envoys(&[7]));
}

#[test]
fn a_leader_that_the_filters_do_not_follow_gives_the_lease_back() {
    let (mut bench, acquired) = Bench::takeover();
    let term = acquired.term;
    bench.handle(Report::Unfollowed { term: term - 1 });
    assert_eq!(bench.outputs(), [], "a report of an earlier term");
    bench.handle(Report::Unfollowed { term });
    let outputs = bench.outputs();
    assert_eq!(outputs[0], Output::Role(stand_by(Some(OTHER), term)));
    let Output::Request(Request::Release { record, .. }) = &outputs[1] else {
        panic!("{outputs:?}");
    };
    assert_eq!(*record, others_record(term));
    bench.done();
    assert_eq!(bench.roles(), []);
    bench.pass(DURATION / 2);
    bench.handle(Report::Wanted);
    assert_eq!(bench.outputs(), [], "not so soon again");
    bench.pass(DURATION / 2);
    bench.acquisition();
}

#[test]
fn only_a_leader_that_leaves_names_its_own_picker_to_its_successor() {
    for (input, ids) in [(Input::Resign, vec![6]), (Input::Leave, vec![6, 5])] {
        let (mut bench, term) = Bench::leader();
        let pickers = Pickers { own: envoys(&[5]), earlier: envoys(&[6]) };
        bench.handle(Report::Known { term, envoys: envoys(&[1]), pickers });
        assert_eq!(bench.written().pickers, envoys(&[6]), "the picker of a leader that dies is gone, too");
        bench.done();
        bench.pass(SECOND);
        assert!(renew(&bench.request()));
        bench.handle(input);
        assert_eq!(bench.roles(), [stand_by(None, term)]);
        bench.done();
        let record = bench.released();
        assert!(record.released);
        assert_eq!((record.envoys, record.pickers), (envoys(&[1]), envoys(&ids)));
    }
}

#[test]
fn pickers_of_earlier_leaders_are_named_to_every_successor_and_hold_no_lease() {
    let mut bench = Bench::new();
    let record = Record { envoys: Vec::new(), pickers: envoys(&[6]), ..others_record(5) };
    // The last leader died, and had no filters, so only its lease let it grant.
    bench.observe(Holder::None, Some(record));
    let record = bench.acquisition();
    assert_eq!(
        (&record.pickers, record.taking_over_from),
        (&envoys(&[6]), None),
        "for the next, if this one fails"
    );
    bench.done();
    let roles = bench.roles();
    let [RoleChange::Lead { known, pickers, is_last_leader_gone: true, .. }] = &roles[..] else {
        panic!("{roles:?}");
    };
    assert_eq!((known, pickers), (&Vec::new(), &envoys(&[6])));
}

#[test]
fn a_companion_that_resigns_stops_granting_and_then_releases_the_lease() {
    let (mut bench, term) = Bench::leader_of(&[1, 2]);
    bench.pass(SECOND);
    assert!(renew(&bench.request()));
    bench.handle(Input::Resign);
    assert_eq!(bench.roles(), [stand_by(None, term)], "before the store is asked");
    bench.done();
    let record = bench.released();
    assert!(record.released && record.leader.is_empty());
    assert_eq!((record.term, record.envoys), (term, envoys(&[1, 2])));
    assert!(!bench.candidate.is_done());
    bench.done();
    assert!(bench.candidate.is_done());
    bench.handle(Report::Wanted);
    bench.handle(Report::Known { term, envoys: envoys(&[1]), pickers: Pickers::default() });
    bench.pass(2 * DURATION);
    assert_eq!(bench.outputs(), []);
}

#[test]
fn a_resigning_companion_tries_to_release_until_the_store_answers() {
    let (mut bench, _) = Bench::leader_of(&[1]);
    bench.handle(Input::Resign);
    bench.outputs();
    bench.handle(Input::Answered(Answer::Failed));
    bench.pass(DURATION / 12);
    bench.released();
    bench.pass(SECOND);
    bench.released();
    assert!(!bench.candidate.is_done());
    bench.done();
    assert!(bench.candidate.is_done());
}

#[test]
fn a_companion_that_resigns_during_an_acquisition_gives_the_lease_back() {
    let mut bench = Bench::new();
    bench.observe(Holder::None, Some(others_record(5)));
    bench.handle(Report::Wanted);
    let acquired = bench.acquisition();
    bench.handle(Input::Resign);
    assert_eq!(bench.outputs(), []);
    bench.done();
    let record = bench.released();
    assert_eq!(record, others_record(acquired.term), "its leader may be in charge");
    bench.done();
    assert!(bench.candidate.is_done());
}

#[test]
fn a_companion_without_the_lease_resigns_at_once_and_a_stopped_one_sends_nothing() {
    let mut bench = Bench::new();
    bench.observe(Holder::Other, Some(others_record(5)));
    bench.handle(Input::Resign);
    assert!(bench.candidate.is_done());

    let (mut bench, term) = Bench::leader_of(&[1]);
    bench.handle(Input::Stop);
    assert_eq!(bench.roles(), [stand_by(None, term)]);
    assert!(bench.candidate.is_done());
    bench.pass(2 * DURATION);
    assert_eq!((bench.outputs(), bench.candidate.poll_timeout()), (Vec::new(), None));
}

#[test]
fn the_status_names_role_term_and_leader() {
    let mut bench = Bench::new();
    bench.observe(Holder::Other, Some(others_record(5)));
    let status = bench.candidate.status();
    assert_eq!((status.role, status.term, status.leader.as_deref()), (Role::Standby, 5, Some(OTHER)));
    let (bench, term) = Bench::leader();
    let status = bench.candidate.status();
    assert_eq!((status.role, status.term, status.leader.as_deref()), (Role::Leader, term, Some(OWN)));
}
