//! Metrics pages that are read before their time: a client has left, and the server's own count shows when its place is free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

/// The pool and the address of an endpoint.
type Endpoint = (Arc<str>, Arc<str>);

/// A reader that has ended is forgotten when the next one begins.
#[derive(Debug, Default)]
pub(crate) struct EarlyReads(Mutex<HashMap<Endpoint, Weak<Notify>>>);

impl EarlyReads {
    /// What wakes the reader of this endpoint's page.
    pub(crate) fn listen(&self, pool: &Arc<str>, address: &str) -> Arc<Notify> {
        let notify = Arc::<Notify>::default();
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|_, reader| reader.strong_count() > 0);
        readers.insert((pool.clone(), address.into()), Arc::downgrade(&notify));
        notify
    }

    /// The page of this endpoint shall be read soon, if it is read at all.
    pub(crate) fn ask(&self, pool: &Arc<str>, address: &Arc<str>) {
        let readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = readers.get(&(pool.clone(), address.clone())).and_then(Weak::upgrade) {
            reader.notify_one();
        }
    }
}
