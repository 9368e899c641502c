//! What all workers of this Envoy process share.

use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;
use penstock_filter_core::shared_data::{SetIf, SharedData};

/// The data of the process.
#[derive(Debug)]
pub(crate) struct ProcessData;

/// Values and their versions, by key.
type Table = HashMap<String, (Vec<u8>, u32)>;

fn with<T>(f: impl FnOnce(&mut Table) -> T) -> T {
    static DATA: Mutex<Option<Table>> = Mutex::new(None);
    let mut data = DATA.lock().unwrap_or_else(PoisonError::into_inner);
    f(data.get_or_insert_default())
}

impl SharedData for ProcessData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        with(|data| data.get(key).cloned())
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        with(|data| {
            let current = data.get(key).map(|(_, version)| *version);
            let holds = condition.holds(current);
            if holds {
                let version = current.unwrap_or(0).wrapping_add(1);
                data.insert(key.to_owned(), (value.to_vec(), version));
            }
            holds
        })
    }
}
