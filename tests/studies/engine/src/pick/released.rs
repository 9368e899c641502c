//! The policy queue of the released crate through its public interface: no limits, no busy worker, first come, first
//! served.

use dynamo_kv_router::RouterQueuePolicy;
use dynamo_kv_router::scheduling::{
    PolicyClassConfig, PolicyQueue, QueueSnapshot, RouterPolicyConfig, WorkerPlacement,
};

use super::{Item, Subject, quantum};

pub(crate) struct Released {
    queue: PolicyQueue<u64>,
}

impl Subject for Released {
    type Request = Item;

    const NAME: &'static str = "dynamo-kv-router 1.6.1";

    fn new(classes: usize) -> Self {
        let mut yaml =
            "default_policy_family: class-0\nuncached_isl_buckets:\n- {min_tokens: 0, bucket: all}\n\
                        policy_classes:\n"
                .to_owned();
        for class in 0..classes {
            yaml += &format!(
                "- {{name: class-{class}, policy_family: class-{class}, cache_bucket: all, quantum: {}}}\n",
                quantum(class)
            );
        }
        let config = RouterPolicyConfig::from_yaml(&yaml).expect("the policy is valid");
        let profile = config.resolve_profile(None, None, RouterQueuePolicy::Fcfs);
        let named = |(class, config): (usize, &PolicyClassConfig)| config.name == format!("class-{class}");
        assert!(profile.classes().iter().enumerate().all(named), "classes have the order of the policy");
        Self { queue: PolicyQueue::new(profile) }
    }

    fn prepare(&self, item: Item) -> Item {
        item
    }

    fn enqueue(&mut self, item: Item) {
        let cost = usize::try_from(item.cost).expect("a cost fits");
        let result = self.queue.enqueue(
            item.class,
            1,
            QueueSnapshot::new(cost, 0),
            item.id as f64,
            0.0,
            0,
            WorkerPlacement::Any,
            item.id,
        );
        assert!(result.is_ok(), "the queue has no limit");
    }

    fn pick(&mut self) -> u64 {
        let picked = self.queue.pop_next(|_, _, _| true);
        picked.expect("a request waits").into_payload()
    }

    fn end(&mut self, _id: u64) {}
}
