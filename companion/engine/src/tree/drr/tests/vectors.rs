//! The reference vectors at the level of the node: the order, and the deficits after every dispatch.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::super::super::dynamo::Dynamo;
use super::super::super::node::{Node, Unit};
use super::super::{Drr, Quantum};
use super::{charge, head};
use crate::ids::{ChildId, Id};

const STATIC: &str = include_str!("../../../../tests/vectors/drr.jsonl");
const VISITS: &str = include_str!("../../../../tests/vectors/drr-visits.jsonl");

struct Waiting {
    id: String,
    cost: u64,
    strict: i64,
    score: f64,
}

/// A node that vectors describe.
trait Classes: Node {
    fn deficit_of(&self, class: ChildId) -> u64;
    fn check(&self);
}

impl Classes for Drr<u32> {
    fn deficit_of(&self, class: ChildId) -> u64 {
        self.deficit(class)
    }

    fn check(&self) {
        self.audit().expect("audit");
    }
}

impl Classes for Dynamo {
    fn deficit_of(&self, class: ChildId) -> u64 {
        self.deficit(class)
    }

    fn check(&self) {
        self.audit().expect("audit");
    }
}

/// The id of the dispatched request, or null, and the deficits after that, class by class.
type Dispatch = (Value, Vec<u64>);

fn text(value: &Value) -> String {
    value.as_str().expect("a string").into()
}

fn run(case: &Value, node: &mut dyn Classes) -> Vec<Dispatch> {
    let classes = case["classes"].as_array().expect("classes");
    let index = |name: &Value| {
        let found = classes.iter().position(|class| class["name"] == *name);
        found.expect("a class of the case")
    };
    let mut queues: Vec<Vec<Waiting>> = classes.iter().map(|_| Vec::new()).collect();
    let mut class_of: BTreeMap<String, usize> = BTreeMap::new();
    let mut dispatched = Vec::new();
    let update = |node: &mut dyn Classes, class: usize, queue: &[Waiting]| match queue.first() {
        Some(next) => node.enqueue(ChildId::from_index(class), &head(next.cost)),
        None => node.remove(ChildId::from_index(class)),
    };
    for op in case["ops"].as_array().expect("ops") {
        match op["op"].as_str() {
            Some("enqueue") => {
                let class = index(&op["class"]);
                let tokens = op["tokens"].as_u64().expect("tokens");
                let cached = op["cached"].as_u64().expect("cached");
                let jump = op["jump"].as_f64().expect("jump").max(0.0);
                let cost = tokens.saturating_sub(cached).max(1);
                let new = Waiting {
                    id: text(&op["id"]),
                    cost,
                    strict: op["strict"].as_i64().expect("strict"),
                    score: match classes[class]["queue_policy"].as_str() {
                        Some("wspt") => (1.0 + jump) / cost as f64,
                        _ => jump - op["t"].as_f64().expect("t").max(0.0),
                    },
                };
                class_of.insert(new.id.clone(), class);
                let before = |other: &Waiting| (other.strict, other.score) >= (new.strict, new.score);
                let position = queues[class].partition_point(before);
                queues[class].insert(position, new);
                update(node, class, &queues[class]);
            }
            Some("cancel") => {
                let id = text(&op["id"]);
                let class = class_of[&id];
                queues[class].retain(|waiting| waiting.id != id);
                update(node, class, &queues[class]);
            }
            _ => {
                let blocked = op["blocked"].as_array().expect("blocked").iter().map(index);
                let blocked: Vec<usize> = blocked.filter(|&class| !queues[class].is_empty()).collect();
                for &class in &blocked {
                    node.block(ChildId::from_index(class));
                }
                let served = if let Some(child) = node.pick() {
                    let class = child.index();
                    let served = queues[class].remove(0);
                    node.serve(child, &charge(served.cost));
                    update(node, class, &queues[class]);
                    Value::String(served.id)
                } else {
                    node.pick_missed();
                    Value::Null
                };
                for class in blocked {
                    update(node, class, &queues[class]);
                }
                node.check();
                let deficits = (0..classes.len()).map(|class| node.deficit_of(ChildId::from_index(class)));
                dispatched.push((served, deficits.collect()));
            }
        }
    }
    dispatched
}

fn cases(text: &str) -> Vec<Value> {
    let cases = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    cases.collect()
}

fn quanta(case: &Value) -> impl Iterator<Item = u64> {
    let classes = case["classes"].as_array().expect("classes").iter();
    classes.map(|class| class["quantum"].as_u64().expect("quantum"))
}

fn exact(case: &Value) -> Drr<u32> {
    let mut node = Drr::fixed(Unit::Class);
    for (owner, quantum) in (0..).zip(quanta(case)) {
        node.add(owner, Quantum::whole(quantum));
    }
    node
}

fn order(dispatched: Vec<Dispatch>) -> Value {
    Value::Array(dispatched.into_iter().map(|(served, _)| served).collect())
}

#[test]
fn the_exact_order_of_all_vectors_that_have_one() {
    let mut tested = 0;
    for case in cases(STATIC) {
        let expected = &case["expect"]["exact"];
        if !expected.is_null() {
            tested += 1;
            assert_eq!(order(run(&case, &mut exact(&case))), *expected, "{}", case["name"]);
        }
    }
    assert_eq!(tested, 40);
}

#[test]
fn order_and_deficits_with_arrivals_cancels_and_blocked_classes() {
    let all = cases(VISITS);
    assert_eq!(all.len(), 60);
    for case in all {
        let dispatched = run(&case, &mut exact(&case));
        let deficits = case["expect"]["deficits"].as_array().expect("deficits");
        assert_eq!(deficits.len(), dispatched.len());
        for (number, (expected, (_, found))) in deficits.iter().zip(&dispatched).enumerate() {
            let classes = case["classes"].as_array().expect("classes").iter();
            let expected: Vec<_> =
                classes.map(|class| expected[class["name"].as_str().expect("name")].as_u64()).collect();
            let found: Vec<_> = found.iter().copied().map(Some).collect();
            assert_eq!(found, expected, "{} after dispatch {number}", case["name"]);
        }
        assert_eq!(order(dispatched), case["expect"]["exact"], "{}", case["name"]);
    }
}

#[test]
fn the_order_of_the_released_router() {
    let all = cases(STATIC);
    assert_eq!(all.len(), 160);
    for case in all {
        let mut node = Dynamo::new(Unit::Class);
        for quantum in quanta(&case) {
            node.add(quantum);
        }
        let found = order(run(&case, &mut node));
        assert_eq!(found, case["expect"]["dynamo"], "{}", case["name"]);
    }
}
