//! Whatever the network loses, the companion learns of every request that was cancelled, and of all that still wait.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock_wire::filter_frame::Event;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::worker::harness::{Output, Rig};

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive,
    /// The client of a waiting request disconnects.
    Leave(prop::sample::Index),
    /// This many more frames of the stream reach the companion.
    Deliver(usize),
    /// The companion acknowledges the frames that reached it.
    Acknowledge,
    /// The stream ends, the frames that didn't reach the companion are lost, and the next stream opens.
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Arrive),
        3 => any::<prop::sample::Index>().prop_map(Step::Leave),
        3 => (0_usize..4).prop_map(Step::Deliver),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Lose),
    ]
}

/// A simple model of the companion.
#[derive(Default)]
struct Model {
    waiting: Vec<u64>,
    /// Cancelled requests that aren't acknowledged, in the order of cancelling.
    left: Vec<u64>,
    all_cancelled: BTreeSet<u64>,
    received: BTreeSet<u64>,
    /// The events that were sent on this stream, and how many of them arrived.
    stream: Vec<Event>,
    delivered: usize,
}

impl Model {
    fn sent(&mut self, outputs: Vec<Output>) {
        for out in outputs {
            let Output::Sent(seq, event) = out else { panic!("only frames: {out:?}") };
            self.stream.push(event);
            assert_eq!(seq, self.stream.len() as u64, "frames are numbered without gaps");
        }
    }

    fn cancels(&self, events: &[Event]) -> Vec<u64> {
        let cancel = |event: &Event| {
            if let Event::Cancel(cancel) = event { Some(cancel.sequence) } else { None }
        };
        events.iter().filter_map(cancel).collect()
    }

    fn deliver(&mut self, count: usize) {
        self.delivered = (self.delivered + count).min(self.stream.len());
        self.received.extend(self.cancels(&self.stream[..self.delivered]));
    }

    fn acknowledge(&mut self) -> u64 {
        let received = self.cancels(&self.stream[..self.delivered]);
        self.left.retain(|sequence| !received.contains(sequence));
        self.delivered as u64
    }

    /// Checks a new stream: its Hello must list all waiting requests, and exactly the unacknowledged events must follow.
    fn reopened(&mut self, outputs: Vec<Output>) {
        self.stream.clear();
        self.delivered = 0;
        self.sent(outputs);
        let Some(Event::Hello(hello)) = self.stream.first() else { panic!("Hello first") };
        let waiting: Vec<u64> = hello.waiting.iter().map(|register| register.sequence).collect();
        assert_eq!(waiting, self.waiting);
        assert_eq!(self.cancels(&self.stream), self.left);
        assert_eq!(self.stream.len(), 1 + self.left.len());
    }
}

fn reopen(rig: &mut Rig, model: &mut Model) {
    rig.closed();
    rig.advance(Duration::from_secs(1));
    let outputs = rig.open();
    rig.hello_ack(1);
    model.reopened(outputs);
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_acknowledged_is_repeated(steps in vec(step(), 0..60)) {
        let mut rig = Rig::connected();
        let mut model = Model::default();
        reopen(&mut rig, &mut model);
        for step in steps {
            match step {
                Step::Arrive => {
                    let (sequence, outputs) = rig.waiting("p1");
                    model.waiting.push(sequence);
                    model.sent(outputs);
                }
                Step::Leave(which) => {
                    if !model.waiting.is_empty() {
                        let sequence = model.waiting.remove(which.index(model.waiting.len()));
                        model.left.push(sequence);
                        model.all_cancelled.insert(sequence);
                        let outputs = rig.log(sequence);
                        model.sent(outputs);
                    }
                }
                Step::Deliver(count) => model.deliver(count),
                Step::Acknowledge => {
                    let ack = model.acknowledge();
                    prop_assert_eq!(rig.command(ack, []), []);
                }
                Step::Lose => reopen(&mut rig, &mut model),
            }
        }
        reopen(&mut rig, &mut model);
        model.deliver(usize::MAX - model.delivered);
        prop_assert_eq!(model.received, model.all_cancelled);
    }

    #[test]
    fn arbitrary_messages_of_the_companion_are_handled(messages in vec(vec(any::<u8>(), 0..40), 0..8)) {
        let mut rig = Rig::connected();
        rig.waiting("p1");
        for message in messages {
            rig.receive(&message);
        }
        rig.outputs();
        rig.tick();
    }
}
