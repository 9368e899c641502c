//! Deficits and fairness lags, for display.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Tree;
use super::classes::ClassNode;
use super::fairness_lag::has_bound;
use crate::band::TreeBand;
use crate::ids::{ClassId, FlowId, Id, LeafId, ModelId, ModelTreeId};
use crate::input::Band;
use crate::snapshot::FairnessLag;

/// Adds a lag, or raises the one of the same place.
fn add_lag(lags: &mut Vec<FairnessLag>, lag: FairnessLag) {
    let place = |lag: &FairnessLag| (lag.band, lag.model.clone(), lag.class.clone());
    match lags.iter_mut().find(|other| place(other) == place(&lag)) {
        Some(other) => other.ratio = other.ratio.max(lag.ratio),
        None => lags.push(lag),
    }
}

impl Tree {
    /// Each configured class with its deficit in the band and model tree of `flow`, in the order of the ring.
    pub(crate) fn deficits(&self, flow: FlowId) -> Vec<(Box<str>, u64)> {
        let tree = &self.trees[self.leaves[self.flows[flow].leaf].tree];
        let configured = self.classes.iter().filter(|(_, class)| class.policy.is_some());
        configured.map(|(id, class)| (class.name().into(), tree.level.deficit(id))).collect()
    }

    /// The sum of the deficits of `class` over all bands and models.
    pub(crate) fn deficit(&self, class: ClassId) -> u64 {
        let trees = self.trees.iter();
        trees.map(|(_, tree)| tree.level.deficit(class)).sum()
    }

    /// The fairness lag of each leaf. Where all models share a tree, leaves that don't exist yet count as 0.
    pub(crate) fn fairness_lags(&self) -> Vec<FairnessLag> {
        if !has_bound(self.config.discipline) {
            return Vec::new();
        }
        let mut lags: Vec<FairnessLag> = Vec::new();
        for band in TreeBand::ALL {
            let trees = self.bands[band as usize].trees.iter();
            let mut trees: Vec<(ModelId, Option<ModelTreeId>)> =
                trees.map(|(&model, &tree)| (model, Some(tree))).collect();
            if trees.is_empty() && !self.config.per_model && band != TreeBand::Demoted {
                trees.push((ModelId::FIRST, None));
            }
            trees.sort_unstable();
            for (model, tree) in trees {
                for (class_id, class) in self.classes.iter() {
                    let leaf = tree.and_then(|tree| self.trees[tree].leaves[class_id.index()]);
                    if leaf.is_some() || !self.config.per_model {
                        let lag = self.fairness_lag(band.shown(), model, class, leaf);
                        if band == TreeBand::Demoted {
                            add_lag(&mut lags, lag);
                        } else {
                            lags.push(lag);
                        }
                    }
                }
            }
        }
        lags
    }

    fn fairness_lag(
        &self,
        band: Band,
        model: ModelId,
        class: &ClassNode,
        leaf: Option<LeafId>,
    ) -> FairnessLag {
        let largest = |flow: FlowId| self.flows[flow].largest_cost;
        let (discipline, unit) = (self.config.discipline, self.config.cost);
        let ratio = |leaf: LeafId| self.leaves[leaf].lags.ratio(discipline, unit, largest);
        FairnessLag {
            band,
            model: match self.model_ids.name(model) {
                Some(name) if self.config.per_model => (**name).into(),
                None if self.config.per_model => "other".into(),
                Some(_) | None => Box::default(),
            },
            class: class.name().into(),
            ratio: leaf.map_or(0.0, ratio),
        }
    }
}
