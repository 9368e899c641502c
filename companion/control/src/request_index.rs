//! Requests by their `x-request-id`.
//!
//! Clients choose the id, so several requests may share one. The index copies no text: it compares with the labels of a
//! request that has the id.

use core::hash::BuildHasher;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use penstock_engine::RequestId;

use crate::ids::{PoolId, Route};
use crate::labels::Labels;

/// All requests that have an id and haven't ended.
#[derive(Debug, Default)]
pub(crate) struct RequestIndex {
    table: HashTable<Indexed>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Indexed {
    /// Of one of the requests that have had the id.
    labels: Arc<Labels>,
    requests: Sharing,
}

/// The requests with one id.
#[derive(Debug)]
enum Sharing {
    One(Route),
    #[expect(
        clippy::box_collection,
        reason = "most ids are of one request, whose entry would be larger by 16 bytes"
    )]
    Many(Box<BTreeMap<RequestId, PoolId>>),
}

impl RequestIndex {
    /// Adds a request. One without an id isn't indexed.
    pub(crate) fn insert(&mut self, labels: &Arc<Labels>, route: Route) {
        if labels.request_id.is_empty() {
            return;
        }
        match self.entry(&labels.request_id) {
            Entry::Vacant(entry) => {
                entry.insert(Indexed { labels: labels.clone(), requests: Sharing::One(route) });
            }
            Entry::Occupied(mut entry) => match &mut entry.get_mut().requests {
                Sharing::Many(routes) => {
                    routes.insert(route.id, route.pool);
                }
                one @ Sharing::One(_) => {
                    let Sharing::One(first) = *one else { return };
                    let routes = BTreeMap::from([(first.id, first.pool), (route.id, route.pool)]);
                    *one = Sharing::Many(Box::new(routes));
                }
            },
        }
    }

    /// Removes a request that has ended.
    pub(crate) fn remove(&mut self, request_id: &str, id: RequestId) {
        if request_id.is_empty() {
            return;
        }
        if let Entry::Occupied(mut entry) = self.entry(request_id) {
            let is_last = match &mut entry.get_mut().requests {
                Sharing::One(_) => true,
                Sharing::Many(routes) => {
                    routes.remove(&id);
                    routes.is_empty()
                }
            };
            if is_last {
                entry.remove();
            }
        }
    }

    /// The request with this id that came last.
    pub(crate) fn latest(&self, request_id: &str) -> Option<Route> {
        let hash = self.hasher.hash_one(request_id);
        let indexed = self.table.find(hash, |indexed| &*indexed.labels.request_id == request_id)?;
        match &indexed.requests {
            Sharing::One(route) => Some(*route),
            Sharing::Many(routes) => routes.last_key_value().map(|(&id, &pool)| Route { pool, id }),
        }
    }

    /// How many requests are indexed.
    pub(crate) fn len(&self) -> usize {
        let counts = self.table.iter().map(|indexed| match &indexed.requests {
            Sharing::One(_) => 1,
            Sharing::Many(routes) => routes.len(),
        });
        counts.sum()
    }

    fn entry(&mut self, request_id: &str) -> Entry<'_, Indexed> {
        let Self { table, hasher } = self;
        table.entry(
            hasher.hash_one(request_id),
            |indexed| &*indexed.labels.request_id == request_id,
            |indexed| hasher.hash_one(&*indexed.labels.request_id),
        )
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::ModelName;
    use penstock_engine::input::Band;

    use super::*;

    fn labels(request_id: &str) -> Arc<Labels> {
        Arc::new(Labels {
            tokens: None,
            pool: "chat".into(),
            model: ModelName::default(),
            flow: Arc::default(),
            private: false,
            band: Band::Default,
            class: Box::default(),
            request_id: request_id.into(),
            traceparent: Box::default(),
        })
    }

    fn route(id: u64) -> Route {
        Route { pool: PoolId(7), id: RequestId(id) }
    }

    #[test]
    fn the_latest_of_the_requests_that_share_an_id_is_found() {
        let mut index = RequestIndex::default();
        let (shared, own) = (labels("shared"), labels("own"));
        for id in [1, 3, 2] {
            index.insert(&shared, route(id));
        }
        index.insert(&own, route(4));
        index.insert(&labels(""), route(5));
        assert_eq!(index.len(), 4);
        assert_eq!(index.latest("shared"), Some(route(3)));
        assert_eq!(index.latest("own"), Some(route(4)));
        assert_eq!((index.latest(""), index.latest("other")), (None, None));
        for (id, latest) in [(3, Some(route(2))), (1, Some(route(2))), (2, None)] {
            index.remove("shared", RequestId(id));
            assert_eq!(index.latest("shared"), latest);
        }
        index.remove("own", RequestId(4));
        assert_eq!(index.len(), 0);
    }
}
