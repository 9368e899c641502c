//! The root of the tree: the choice among bands.

use super::super::drr::Drr;
use super::super::node::{Head, Node, Receipt, Unit, band_child};
use super::super::strict_priority::StrictPriority;
use super::super::tree_config::TreeConfig;
use super::quantum;
use crate::audit::AuditError;
use crate::band::TreeBand;
use crate::cost::Charge;
use crate::ids::{ChildId, Id};
use crate::policy::BandMode;

/// The bands of requests, which have weights. The demoted band has none: it has no place in the ring, and comes after all others.
const WEIGHTED: [TreeBand; 3] = [TreeBand::Critical, TreeBand::Default, TreeBand::Sheddable];

fn has_quantum([critical, default, sheddable]: [f64; 3]) -> [bool; TreeBand::COUNT] {
    [critical, default, sheddable, 0.0].map(|weight| weight > 0.0)
}

/// Tokens that a visit grants to a band of weight 1.
const BAND_TOKENS: f64 = 100.0;

#[derive(Debug)]
pub(crate) enum BandLevel {
    Strict(StrictPriority),
    Weighted(Weighted),
}

delegate_node!(BandLevel: Strict | Weighted);

impl BandLevel {
    /// The level uses only whether a child is runnable.
    pub(crate) const fn ignores_heads(&self) -> bool {
        matches!(self, Self::Strict(_))
    }

    pub(crate) fn new(config: &TreeConfig) -> Self {
        match config.bands.mode {
            BandMode::Strict => Self::Strict(StrictPriority::default()),
            BandMode::Weighted(weights) => {
                let mut drr = Drr::fixed(Unit::Flow);
                for (band, weight) in WEIGHTED.into_iter().zip(weights) {
                    drr.add(band, quantum(BAND_TOKENS, weight, config));
                }
                Self::Weighted(Weighted {
                    drr,
                    rest: StrictPriority::default(),
                    has_quantum: has_quantum(weights),
                })
            }
        }
    }

    /// Applies other weights in place. Returns `false` if that needs another level.
    pub(crate) fn reconfigure(&mut self, config: &TreeConfig) -> bool {
        match (self, config.bands.mode) {
            (Self::Strict(_), BandMode::Strict) => true,
            (Self::Weighted(weighted), BandMode::Weighted(weights)) => {
                if weighted.has_quantum != has_quantum(weights) {
                    return false;
                }
                for (band, weight) in WEIGHTED.into_iter().zip(weights) {
                    let quantum = quantum(BAND_TOKENS, weight, config);
                    weighted.drr.set_quantum(band_child(band), quantum);
                }
                true
            }
            (Self::Strict(_) | Self::Weighted(_), _) => false,
        }
    }

    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        match self {
            Self::Strict(_) => Ok(()),
            Self::Weighted(weighted) => weighted.drr.audit(),
        }
    }
}

/// Bands by weight. Bands of weight 0 come after all others, the more critical first.
#[derive(Debug)]
pub(crate) struct Weighted {
    drr: Drr<TreeBand>,
    rest: StrictPriority,
    has_quantum: [bool; TreeBand::COUNT],
}

impl Weighted {
    fn node(&mut self, band: ChildId) -> &mut dyn Node {
        if self.has_quantum[band.index()] { &mut self.drr } else { &mut self.rest }
    }
}

impl Node for Weighted {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        self.node(child).enqueue(child, head);
    }

    fn block(&mut self, child: ChildId) {
        self.node(child).block(child);
    }

    fn remove(&mut self, child: ChildId) {
        self.node(child).remove(child);
    }

    fn pick(&self) -> Option<ChildId> {
        self.drr.pick().or_else(|| self.rest.pick())
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.node(child).serve(child, charge)
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.node(child).charge(child, charge)
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        self.node(child).settle(child, charge, receipt, real);
    }
}
