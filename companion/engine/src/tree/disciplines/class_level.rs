//! The choice among the classes of one model in one band.

use super::super::classes::Classes;
use super::super::drr::{Drr, Quantum};
use super::super::dynamo::Dynamo;
use super::super::node::{Head, Node, Receipt, Unit};
use super::super::strict_priority::StrictPriority;
use super::super::tree_config::TreeConfig;
use crate::audit::AuditError;
use crate::cost::Charge;
use crate::ids::{ChildId, ClassId};
use crate::policy::ClassMode;

#[derive(Debug)]
pub(crate) enum ClassLevel {
    /// There is one class.
    One(StrictPriority),
    Exact(Drr<ClassId>),
    Dynamo(Dynamo),
}

delegate_node!(ClassLevel: One | Exact | Dynamo);

impl ClassLevel {
    /// The level uses only whether a child is runnable.
    pub(crate) const fn ignores_heads(&self) -> bool {
        matches!(self, Self::One(_))
    }

    pub(crate) fn new(classes: &Classes, config: &TreeConfig) -> Self {
        if !classes.are_configured() {
            return Self::One(StrictPriority::default());
        }
        match config.class_mode {
            ClassMode::Exact => {
                let mut drr = Drr::fixed(Unit::Class);
                for (id, class) in classes.iter() {
                    drr.add(id, Quantum::whole(class.quantum()));
                }
                Self::Exact(drr)
            }
            ClassMode::Dynamo => {
                let mut dynamo = Dynamo::new(Unit::Class);
                for (_, class) in classes.iter() {
                    dynamo.add(class.quantum());
                }
                Self::Dynamo(dynamo)
            }
        }
    }

    /// Applies other quanta to the same classes.
    pub(crate) fn set_quanta(&mut self, classes: &Classes) {
        for (id, class) in classes.iter() {
            let child = ChildId::of_class(id);
            match self {
                Self::One(_) => {}
                Self::Exact(drr) => drr.set_quantum(child, Quantum::whole(class.quantum())),
                Self::Dynamo(dynamo) => dynamo.set_quantum(child, class.quantum()),
            }
        }
    }

    /// The class that is next.
    pub(crate) fn pick_class(&self) -> Option<ClassId> {
        self.pick().map(ChildId::class)
    }

    /// The deficit of `class`; 0 where none is configured.
    pub(crate) fn deficit(&self, class: ClassId) -> u64 {
        let child = ChildId::of_class(class);
        match self {
            Self::One(_) => 0,
            Self::Exact(drr) => drr.deficit(child),
            Self::Dynamo(dynamo) => dynamo.deficit(child),
        }
    }

    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Exact(drr) => drr.audit(),
            Self::Dynamo(dynamo) => dynamo.audit(),
        }
    }
}
