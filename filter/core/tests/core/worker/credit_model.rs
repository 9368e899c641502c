//! Filter and companion agree about the places of credits after every order of messages, and every request is counted once.
//! The model of the companion follows the rules of `penstock_filter_core`'s module `credits`, and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_filter_core::limits::REPORT_HOLD;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Admitted, Grant, Recall, Role};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::worker::credits::{BODY, TTL, arrive, connected, credit};
use crate::worker::harness::{Output, Rig, grant};

const ENDPOINTS: [&str; 2] = ["1.1.1.1:1", "2.2.2.2:2"];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The companion gives so many places at this endpoint.
    Give(usize, u32),
    Arrive,
    /// A streamed response begins.
    Start(Index),
    End(Index),
    Recall,
    /// The companion grants all requests that it knows to wait.
    Grant,
    /// So many more frames reach the companion.
    Deliver(usize),
    /// Half of a credit's time passes.
    Pass,
    /// The time passes for which reports are held.
    Hold,
    /// The stream ends, the frames that didn't reach the companion are lost, and the next stream opens: to the same companion or
    /// to a new one.
    Lose(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_usize..2, 1_u32..4).prop_map(|(endpoint, places)| Step::Give(endpoint, places)),
        8 => Just(Step::Arrive),
        2 => any::<Index>().prop_map(Step::Start),
        4 => any::<Index>().prop_map(Step::End),
        1 => Just(Step::Recall),
        2 => Just(Step::Grant),
        4 => (1_usize..6).prop_map(Step::Deliver),
        1 => Just(Step::Pass),
        2 => Just(Step::Hold),
        1 => any::<bool>().prop_map(Step::Lose),
    ]
}

#[derive(Debug)]
struct Frame {
    seq: u64,
    reports: Vec<Admitted>,
    event: Option<Event>,
}

/// The companion, as far as credits concern it.
#[derive(Default)]
struct Companion {
    last_id: u64,
    /// The credit that wasn't returned.
    credit: Option<u64>,
    places: BTreeMap<String, u32>,
    /// The endpoints of the running requests.
    running: BTreeMap<u64, String>,
    waiting: BTreeSet<u64>,
    /// Requests that this companion granted, or an earlier one.
    granted: BTreeSet<u64>,
    /// Requests admitted by credit of which this companion was informed before their end.
    known: BTreeSet<u64>,
    /// Requests whose end this companion counted, or an earlier one.
    ended: BTreeSet<u64>,
    /// The credit is recalled: no more is added to it.
    is_recalled: bool,
    /// Frames received on this stream.
    received: u64,
}

impl Companion {
    fn receive(&mut self, Frame { seq, reports, event }: Frame) {
        assert_eq!(seq, self.received + 1);
        self.received = seq;
        for report in reports {
            self.admitted(report);
        }
        let Some(event) = event else {
            return;
        };
        match event {
            Event::Register(register) => {
                self.waiting.insert(register.sequence);
            }
            Event::Started(started) => assert!(self.running.contains_key(&started.sequence)),
            Event::Completed(completed) => {
                let sequence = completed.sequence;
                let is_known = self.known.contains(&sequence) || self.granted.contains(&sequence);
                assert!(is_known, "the end of a request that is unknown");
                self.running.remove(&sequence);
                self.ended.insert(sequence);
            }
            Event::CreditReturned(returned) => {
                assert_eq!(self.credit, Some(returned.credit));
                self.credit = None;
                self.places.clear();
            }
            Event::Hello(hello) if hello.probe => {}
            Event::Hello(hello) => {
                self.credit = None;
                self.places.clear();
                self.running.clear();
                for running in hello.running {
                    let sequence = running.register.expect("some").sequence;
                    self.known.insert(sequence);
                    self.running.insert(sequence, running.endpoint);
                }
                self.waiting = hello.waiting.iter().map(|register| register.sequence).collect();
            }
            Event::Heartbeat(_) | Event::Cancel(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn admitted(&mut self, admitted: Admitted) {
        let running = admitted.running.expect("some");
        let sequence = running.register.expect("some").sequence;
        if admitted.completed.is_some() {
            self.running.remove(&sequence);
            self.ended.insert(sequence);
            return;
        }
        assert_eq!(self.credit, Some(admitted.credit));
        let places = self.places.get_mut(&running.endpoint).expect("a place");
        *places = places.checked_sub(1).expect("a place");
        assert!(self.known.insert(sequence), "reported twice");
        self.running.insert(sequence, running.endpoint);
    }

    /// How many requests may run at an endpoint, according to the companion.
    fn stock(&self, endpoint: &str) -> u32 {
        let running = self.running.values().filter(|address| *address == endpoint).count();
        self.places.get(endpoint).copied().unwrap_or(0) + u32::try_from(running).expect("few")
    }
}

struct World {
    rig: Rig,
    companion: Companion,
    /// Frames on their way to the companion.
    underway: VecDeque<Frame>,
    /// The endpoints of the requests that run, and whether their response has begun.
    running: BTreeMap<u64, (String, bool)>,
    all: BTreeSet<u64>,
}

impl World {
    fn new() -> Self {
        let companion = Companion { received: 1, ..Companion::default() };
        Self {
            rig: connected(),
            companion,
            underway: VecDeque::new(),
            running: BTreeMap::new(),
            all: BTreeSet::new(),
        }
    }

    fn collect(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            let (seq, report, event) = match output {
                Output::Reported(seq, report) => (seq, Some(report), None),
                Output::Sent(seq, event) => (seq, None, Some(event)),
                Output::Resume(..) => continue,
                other => panic!("{other:?}"),
            };
            let last = self.underway.back_mut().filter(|frame| frame.seq == seq);
            if let Some(frame) = last {
                frame.reports.extend(report);
                frame.event = event;
            } else {
                let reports = report.into_iter().collect();
                self.underway.push_back(Frame { seq, reports, event });
            }
        }
    }

    fn command(&mut self, kind: Kind) {
        let outputs = self.rig.command(self.companion.received, [kind]);
        self.collect(outputs);
    }

    fn give(&mut self, endpoint: usize, places: u32) {
        let companion = &mut self.companion;
        if companion.is_recalled && companion.credit.is_some() {
            return;
        }
        let id = *companion.credit.get_or_insert_with(|| {
            companion.last_id += 1;
            companion.last_id
        });
        companion.is_recalled = false;
        *companion.places.entry(ENDPOINTS[endpoint].into()).or_default() += places;
        self.command(Kind::Credit(credit(id, &[(ENDPOINTS[endpoint], places)])));
    }

    /// Returns whether the request is admitted at once.
    fn arrive(&mut self) -> bool {
        let (sequence, edits) = arrive(&mut self.rig, &[], BODY);
        if let Some(edits) = &edits {
            let edits = format!("{edits:?}");
            let mut endpoints = ENDPOINTS.iter().filter(|address| edits.contains(**address));
            let endpoint = endpoints.next().expect("an endpoint");
            self.running.insert(sequence, ((*endpoint).into(), false));
            self.all.insert(sequence);
        }
        let outputs = self.rig.outputs();
        self.collect(outputs);
        edits.is_some()
    }

    fn start(&mut self, index: Index) {
        let waiting: Vec<u64> = (self.running.iter())
            .filter(|(_, (_, has_begun))| !has_begun)
            .map(|(sequence, _)| *sequence)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let sequence = *index.get(&waiting);
        let (endpoint, has_begun) = self.running.get_mut(&sequence).expect("it runs");
        *has_begun = true;
        self.rig.host.0.insert("upstream.address", endpoint.clone().into_bytes());
        self.rig.response(sequence, &[(":status", "200")], false);
        let outputs = self.rig.outputs();
        self.collect(outputs);
    }

    fn end(&mut self, index: Index) {
        let running: Vec<u64> = self.running.keys().copied().collect();
        if !running.is_empty() {
            let sequence = *index.get(&running);
            self.running.remove(&sequence);
            let outputs = self.rig.log(sequence);
            self.collect(outputs);
        }
    }

    fn recall(&mut self) {
        if let Some(credit) = self.companion.credit {
            self.companion.is_recalled = true;
            self.command(Kind::Recall(Recall { pool: "chat".into(), credit }));
        }
    }

    /// Granted requests go elsewhere, so that they don't count at the endpoints.
    fn grant(&mut self) {
        for sequence in core::mem::take(&mut self.companion.waiting) {
            let elsewhere = "9.9.9.9:9".to_owned();
            self.companion.running.insert(sequence, elsewhere.clone());
            self.companion.granted.insert(sequence);
            self.running.insert(sequence, (elsewhere.clone(), false));
            self.all.insert(sequence);
            self.command(Kind::Grant(Grant { endpoints: vec![elsewhere], ..grant(sequence) }));
        }
    }

    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(frame) = self.underway.pop_front() {
                self.companion.receive(frame);
            }
        }
    }

    fn lose(&mut self, is_new: bool) {
        self.underway.clear();
        if is_new {
            self.companion.known.clear();
            self.companion.last_id = 0;
        }
        self.rig.closed();
        self.check();
        self.rig.advance(Duration::from_millis(50));
        assert_eq!(self.rig.tick(), [Output::OpenStream]);
        let outputs = self.rig.open_silently();
        self.companion.received = 0;
        self.collect(outputs);
        self.deliver(1);
        self.command(Kind::Role(Role { here: true, ..Role::default() }));
        self.deliver(1);
        let outputs = self.rig.hello_ack(1);
        self.collect(outputs);
    }

    fn pass(&mut self, time: Duration) {
        self.rig.advance(time);
        let outputs = self.rig.tick();
        self.collect(outputs);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Give(endpoint, places) => self.give(endpoint, places),
            Step::Arrive => drop(self.arrive()),
            Step::Start(index) => self.start(index),
            Step::End(index) => self.end(index),
            Step::Recall => self.recall(),
            Step::Grant => self.grant(),
            Step::Deliver(count) => self.deliver(count),
            Step::Pass => self.pass(TTL / 2),
            Step::Hold => self.pass(REPORT_HOLD),
            Step::Lose(is_new) => self.lose(is_new),
        }
        self.check();
    }

    /// At no endpoint do more requests run than the companion counts.
    fn check(&self) {
        for endpoint in ENDPOINTS {
            let running = self.running.values().filter(|(address, _)| address == endpoint);
            let running = u32::try_from(running.count()).expect("few");
            assert!(running <= self.companion.stock(endpoint), "{endpoint}");
        }
    }

    /// Ends all requests, and lets the companion receive everything.
    fn finish(&mut self) {
        loop {
            self.pass(REPORT_HOLD);
            self.deliver(self.underway.len());
            self.grant();
            if self.running.is_empty() && self.underway.is_empty() {
                return;
            }
            let running: Vec<u64> = self.running.keys().copied().collect();
            for sequence in running {
                self.running.remove(&sequence);
                let outputs = self.rig.log(sequence);
                self.collect(outputs);
            }
        }
    }
}

proptest! {
    #[test]
    fn both_sides_agree_about_places_and_requests(steps in vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.finish();
        prop_assert_eq!(&world.companion.running, &BTreeMap::new());
        prop_assert_eq!(&world.companion.ended, &world.all);
        // The filter has as many places as the companion, unless the credit has expired.
        let places: u32 = world.companion.places.values().sum();
        let mut admitted = 0;
        while world.arrive() {
            admitted += 1;
        }
        let is_returned = world.underway.iter().any(|frame| matches!(frame.event, Some(Event::CreditReturned(_))));
        prop_assert_eq!(admitted, if is_returned { 0 } else { places });
    }
}
