//! What the workers of the picker share, as those of an Envoy do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_filter_core::shared_data::{SetIf, SharedData};

/// Values and their versions, by key.
type Table = BTreeMap<String, (Vec<u8>, u32)>;

/// The data of all workers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkersData(Arc<Mutex<Table>>);

impl SharedData for WorkersData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        let mut data = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let current = data.get(key).map(|(_, version)| *version);
        let holds = condition.holds(current);
        if holds {
            let version = current.unwrap_or(0).wrapping_add(1);
            data.insert(key.to_owned(), (value.to_vec(), version));
        }
        holds
    }
}
