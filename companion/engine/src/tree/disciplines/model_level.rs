//! The choice among the models of one band.

use super::super::drr::Drr;
use super::super::node::{Head, Node, Receipt, Unit};
use super::super::tree_config::TreeConfig;
use super::{FLOW_TOKENS, quantum};
use crate::audit::AuditError;
use crate::cost::Charge;
use crate::ids::{ChildId, ModelTreeId};

#[derive(Debug)]
pub(crate) enum ModelLevel {
    /// All models share one tree, created when it is first needed.
    Shared { tree: Option<ModelTreeId>, runnable: bool },
    /// Every model has a tree, all with the same quantum.
    PerModel(Drr<ModelTreeId>),
}

impl ModelLevel {
    /// The level uses only whether a child is runnable.
    pub(crate) const fn ignores_heads(&self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    pub(crate) fn new(config: &TreeConfig) -> Self {
        if config.per_model {
            Self::PerModel(Drr::joining(Unit::Flow))
        } else {
            Self::Shared { tree: None, runnable: false }
        }
    }

    pub(crate) fn add(&mut self, id: ModelTreeId, config: &TreeConfig) -> ChildId {
        match self {
            Self::Shared { tree, .. } => {
                *tree = Some(id);
                ChildId::ONLY
            }
            Self::PerModel(drr) => drr.add(id, quantum(FLOW_TOKENS, 1.0, config)),
        }
    }

    /// Removes `child`, of which nothing waits or runs any more.
    pub(crate) fn forget(&mut self, child: ChildId) {
        match self {
            Self::Shared { .. } => {}
            Self::PerModel(drr) => drr.forget(child),
        }
    }

    /// The tree that all models share; `None`: they don't, or it doesn't exist yet.
    pub(crate) const fn shared(&self) -> Option<ModelTreeId> {
        match self {
            Self::Shared { tree, .. } => *tree,
            Self::PerModel(_) => None,
        }
    }

    /// The tree that is next.
    pub(crate) fn pick_tree(&self) -> Option<ModelTreeId> {
        match self {
            Self::Shared { tree, runnable } => tree.filter(|_| *runnable),
            Self::PerModel(drr) => Some(drr.owner(drr.pick()?)),
        }
    }

    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        match self {
            Self::Shared { .. } => Ok(()),
            Self::PerModel(drr) => drr.audit(),
        }
    }
}

impl Node for ModelLevel {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        match self {
            Self::Shared { runnable, .. } => *runnable = true,
            Self::PerModel(drr) => drr.enqueue(child, head),
        }
    }

    fn block(&mut self, child: ChildId) {
        match self {
            Self::Shared { runnable, .. } => *runnable = false,
            Self::PerModel(drr) => drr.block(child),
        }
    }

    fn remove(&mut self, child: ChildId) {
        match self {
            Self::Shared { runnable, .. } => *runnable = false,
            Self::PerModel(drr) => drr.remove(child),
        }
    }

    fn pick(&self) -> Option<ChildId> {
        match self {
            Self::Shared { runnable, .. } => runnable.then_some(ChildId::ONLY),
            Self::PerModel(drr) => drr.pick(),
        }
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        match self {
            Self::Shared { .. } => Receipt::default(),
            Self::PerModel(drr) => drr.serve(child, charge),
        }
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        match self {
            Self::Shared { .. } => Receipt::default(),
            Self::PerModel(drr) => drr.charge(child, charge),
        }
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        match self {
            Self::Shared { .. } => {}
            Self::PerModel(drr) => drr.settle(child, charge, receipt, real),
        }
    }
}
