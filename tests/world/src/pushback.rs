//! Servers that refuse requests by themselves: Envoy logs the attempt, and sends the request to the next host where the filter
//! has asked for that.

use penstock_filter_core::headers::Headers;

use super::World;
use super::event::SimEvent;
use super::headers::{StreamProperties, abi_map, header};
use super::http::VIA_UPSTREAM;
use super::time::MILLI;

impl World {
    /// A server answers an attempt with 429 or 503.
    pub(super) fn attempt_pushed_back(&mut self, id: u64) {
        let status = self.rng.choose(&["429", "503"]);
        let Some(http) = self.http_streams.get(&id) else {
            return;
        };
        self.summary.pushbacks += 1;
        let root = http.root;
        let codes = header(&http.headers, "x-envoy-retriable-status-codes").unwrap_or_default();
        let conditions = header(&http.headers, "x-envoy-retry-on").unwrap_or_default();
        let is_retriable = codes.split(',').any(|code| code == status)
            && conditions.split(',').any(|one| one == "retriable-status-codes");
        let pairs =
            vec![(":status".to_owned(), status.to_owned()), ("retry-after".to_owned(), "1".to_owned())];
        let (request, response) = (abi_map(&http.headers), abi_map(&pairs));
        let (address, attempts) = (http.address.clone(), http.attempts);
        let properties = StreamProperties { upstream_address: &address, attempts, response_code_details: "" };
        self.call_worker(root, |worker, now| {
            let (request, response) = (Headers::new(&request), Headers::new(&response));
            worker.handle_attempt_log(now, request, response, &properties);
        });
        let Some(http) = self.http_streams.get_mut(&id) else {
            return;
        };
        if is_retriable && http.hosts_tried + 1 < http.hosts.len() {
            http.hosts_tried += 1;
            http.was_answered = true;
            let wait = self.rng.below(25 * MILLI);
            return self.event_queue.schedule(self.now + wait, SimEvent::TryNextHost(id));
        }
        if self.start_response(id, pairs, VIA_UPSTREAM).is_some() {
            self.end_response(id, b"{}", VIA_UPSTREAM);
        }
    }
}
