//! The levels of the tree with their possible disciplines, each behind the interface of [`Node`].

use super::drr::Quantum;
use super::tree_config::TreeConfig;
use crate::policy::CostUnit;

/// Tokens that a visit grants to a flow or a model of weight 1.
const FLOW_TOKENS: f64 = 1_024.0;

/// The quantum of a child: `tokens` times its weight; with costs in requests its weight.
fn quantum(tokens: f64, weight: f64, config: &TreeConfig) -> Quantum {
    match config.cost {
        CostUnit::Tokens => Quantum::new(weight * tokens),
        CostUnit::Requests => Quantum::new(weight),
    }
}

/// Implements [`Node`] by delegation to the variant in use.
macro_rules! delegate_node {
    ($level:ty: $($variant:ident)|+) => {
        impl Node for $level {
            fn enqueue(&mut self, child: ChildId, head: &Head) {
                match self {
                    $(Self::$variant(node) => node.enqueue(child, head),)+
                }
            }

            fn block(&mut self, child: ChildId) {
                match self {
                    $(Self::$variant(node) => node.block(child),)+
                }
            }

            fn remove(&mut self, child: ChildId) {
                match self {
                    $(Self::$variant(node) => node.remove(child),)+
                }
            }

            fn pick(&self) -> Option<ChildId> {
                match self {
                    $(Self::$variant(node) => node.pick(),)+
                }
            }

            fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
                match self {
                    $(Self::$variant(node) => node.serve(child, charge),)+
                }
            }

            fn pick_missed(&mut self) {
                match self {
                    $(Self::$variant(node) => node.pick_missed(),)+
                }
            }

            fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
                match self {
                    $(Self::$variant(node) => node.charge(child, charge),)+
                }
            }

            fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
                match self {
                    $(Self::$variant(node) => node.settle(child, charge, receipt, real),)+
                }
            }
        }
    };
}

mod band_level;
mod class_level;
mod flow_level;
mod model_level;

pub(super) use self::band_level::BandLevel;
pub(super) use self::class_level::ClassLevel;
pub(super) use self::flow_level::FlowLevel;
pub(super) use self::model_level::ModelLevel;
