//! The few endpoints that have changed since somebody looked at all of them, so that only these are looked at again.

use alloc::vec::Vec;

/// More than change between two decisions, as a rule.
const FEW: usize = 8;

/// Endpoints by number, each once; or any of them.
#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    numbers: Vec<u32>,
    any: bool,
}

impl DirtySet {
    pub(crate) fn add(&mut self, number: u32) {
        if self.any || self.numbers.contains(&number) {
            return;
        }
        if self.numbers.len() == FEW {
            self.any = true;
        } else {
            self.numbers.push(number);
        }
    }

    /// Numbers don't say any more which endpoint it is.
    pub(crate) const fn forget(&mut self) {
        self.any = true;
    }

    /// Nobody has changed.
    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
        self.any = false;
    }

    /// `None`: any.
    pub(crate) fn few(&self) -> Option<&[u32]> {
        (!self.any).then_some(&self.numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_known_and_more_are_any() {
        let mut touched = DirtySet::default();
        for number in (0..8).chain(0..8) {
            touched.add(number);
        }
        assert_eq!(touched.few(), Some(&[0, 1, 2, 3, 4, 5, 6, 7][..]));
        touched.add(8);
        assert_eq!(touched.few(), None);
        touched.clear();
        assert_eq!(touched.few(), Some(&[][..]));
        touched.forget();
        touched.add(1);
        assert_eq!(touched.few(), None);
    }
}
