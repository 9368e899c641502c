//! HTTP streams inside an Envoy: the filter pauses each one, then resumes or answers it; Envoy routes a resumed stream
//! along a list of hosts; and each stream ends exactly once.
//!
//! The last host of a list can be this Envoy's own requeue listener. The stream's upstream is then another HTTP stream,
//! its child.

use penstock_filter_core::effect::{BodyAction, HeadersAction, ResponseHeadersAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::rewrite::Rewrite;
use penstock_wire::names;

use super::World;
use super::event::{AttemptError, SimEvent};
use super::headers::{Pairs, StreamProperties, abi_map, apply_edits, header, local_reply_headers};
use super::time::{MILLI, Nanos, SECOND};

/// Envoy's response code details for a response that came from upstream.
pub(super) const VIA_UPSTREAM: &str = "via_upstream";

/// An HTTP stream that has not ended.
#[derive(Debug, Default)]
pub(super) struct HttpStream {
    pub(super) root: u64,
    pub(super) envoy: usize,
    pub(super) client: u64,
    /// The stream of which this is the upstream; `None` for a client's own stream.
    pub(super) parent: Option<u64>,
    /// The stream that is this one's upstream.
    pub(super) child: Option<u64>,
    pub(super) sequence: u64,
    pub(super) arrived_at: Nanos,
    pub(super) headers: Pairs,
    body: String,
    /// The time at which the filter had seen the whole request body.
    pub(super) body_read_at: Option<Nanos>,
    pub(super) resumed: bool,
    /// Tenure of the companion that granted the request; `None`: the filter admitted it as a fallback.
    pub(super) granted_by: Option<u64>,
    /// The companion released the request while it ran.
    pub(super) released_while_running: bool,
    /// Tenure of the companion with which the request is registered.
    pub(super) registered_with: Option<u64>,
    /// The group of the Hello by which it was registered there; `None`: its order among requests of other sessions isn't exact.
    pub(super) listed_in: Option<u64>,
    /// Tenure of the companion that counts the request as running.
    pub(super) counted_by: Option<u64>,
    /// The registration's age is too small, so the companion can't know how early the request came.
    pub(super) age_uncertain: bool,
    /// The filter's local reply is scheduled.
    pub(super) replied: bool,
    reply: Pairs,
    pub(super) hosts: Vec<String>,
    pub(super) hosts_tried: usize,
    /// The last host answered the request, and Envoy sends it to the next one.
    pub(super) was_answered: bool,
    pub(super) job: Option<u64>,
    pub(super) address: String,
    pub(super) attempts: u64,
    /// The response's headers were sent downstream.
    response_started: bool,
}

impl HttpStream {
    fn new(root: u64, envoy: usize, client: u64, parent: Option<u64>, arrived_at: Nanos) -> Self {
        Self {
            root,
            envoy,
            client,
            parent,
            arrived_at,
            reply: vec![(":status".to_owned(), "503".to_owned())],
            ..Self::default()
        }
    }

    /// Whether the current host is not the first one of the list.
    pub(super) const fn is_fallback(&self) -> bool {
        self.hosts_tried > 0
    }
}

impl World {
    /// A request's headers reach a root context. `parent` is the stream that Envoy routed to its requeue listener.
    pub(super) fn open_http_stream(
        &mut self,
        root: u64,
        client: u64,
        parent: Option<u64>,
        headers: Pairs,
        body: String,
    ) -> u64 {
        self.http_streams_opened += 1;
        let id = self.http_streams_opened;
        let envoy = self.roots.get(&root).map_or(0, |root| root.envoy);
        self.clients[client as usize].roots.push(root);
        let mut http = HttpStream::new(root, envoy, client, parent, self.now);
        (http.headers, http.body) = (headers, body);
        let properties = StreamProperties { upstream_address: "", attempts: 0, response_code_details: "" };
        let context = u32::try_from(id).unwrap_or(u32::MAX);
        let bytes = abi_map(&http.headers);
        let action = self.call_worker(root, |worker, now| {
            worker.handle_request_headers(now, context, Headers::new(&bytes), false, &properties)
        });
        match action {
            Some(HeadersAction::Pause(sequence, edits)) => {
                http.sequence = sequence;
                apply_edits(&mut http.headers, &edits);
                self.note(|| format!("http {id} of client {client} is request {sequence} of root {root}"));
                self.insert_http_stream(id, http);
            }
            Some(HeadersAction::Reply(sequence, reply)) => {
                http.sequence = sequence;
                http.reply = local_reply_headers(&reply);
                http.replied = true;
                self.insert_http_stream(id, http);
                self.event_queue.schedule(self.now, SimEvent::LocalReply(id));
            }
            Some(HeadersAction::Pass(_) | HeadersAction::Answer(_)) => {
                self.fail(|| format!("http {id} passes through the filter on a queued path"));
            }
            // The VM has trapped.
            None => {
                http.replied = true;
                self.http_streams.insert(id, http);
                self.event_queue.schedule(self.now, SimEvent::LocalReply(id));
            }
        }
        id
    }

    fn insert_http_stream(&mut self, id: u64, http: HttpStream) {
        if let Some(root) = self.roots.get_mut(&http.root) {
            root.http_streams.insert(http.sequence, id);
        }
        self.http_streams.insert(id, http);
    }

    /// The rest of a request's body arrives.
    pub(super) fn receive_body(&mut self, id: u64) {
        let unread = |http: &&mut HttpStream| !http.replied && http.body_read_at.is_none();
        let Some(http) = self.http_streams.get_mut(&id).filter(unread) else {
            return;
        };
        http.body_read_at = Some(self.now);
        let (root, sequence, body) = (http.root, http.sequence, http.body.clone());
        let read = |start: usize, length: usize| {
            body.as_bytes().get(start..start.saturating_add(length)).map(<[u8]>::to_vec)
        };
        let action = self.call_worker(root, |worker, now| {
            worker.handle_request_body(now, sequence, body.len(), true, read)
        });
        match action {
            None | Some(BodyAction::Pause) => {}
            Some(BodyAction::Continue(edits)) => {
                self.message_source = self.named(root, sequence);
                self.summary.credit_admissions += u64::from(self.message_source.is_some());
                self.resume(root, id, &edits, None);
                self.message_source = None;
            }
            Some(BodyAction::Reply(reply)) => self.answer(root, id, &reply),
        }
    }

    /// The filter resumes a stream.
    pub(super) fn resume(&mut self, root: u64, id: u64, edits: &[HeaderEdit], rewrite: Option<&Rewrite>) {
        self.note(|| format!("root {root} resumes http {id}: {edits:?}"));
        let granted_by = self.message_source.map(|(tenure, _)| tenure);
        let Some(http) = self.http_streams.get_mut(&id) else {
            return self.fail(|| format!("http {id} is resumed after its end"));
        };
        if http.resumed || http.replied || http.root != root || http.body_read_at.is_none() {
            let http = format!("{http:?}");
            return self.fail(|| format!("a stream is resumed that must not be, or twice: {http}"));
        }
        http.resumed = true;
        http.granted_by = granted_by;
        apply_edits(&mut http.headers, edits);
        if let Some(rewrite) = rewrite {
            let text = String::from_utf8_lossy(&rewrite.text);
            http.body.replace_range(rewrite.range.clone(), &text);
        }
        let hosts = header(&http.headers, names::ROUTE_HEADER)
            .or_else(|| header(&http.headers, names::ENDPOINT_HEADER))
            .unwrap_or_default();
        http.hosts = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
        self.event_queue.schedule(self.now, SimEvent::TryNextHost(id));
        self.check_wait(id);
        self.check_resumed(id);
    }

    /// The filter answers a paused stream with a local reply.
    pub(super) fn answer(&mut self, root: u64, id: u64, reply: &LocalReply) {
        let status = reply.status;
        self.note(|| format!("root {root} answers http {id} with {status}"));
        self.check_answer(reply);
        let Some(http) = self.http_streams.get_mut(&id) else {
            return self.fail(|| format!("http {id} is answered after its end"));
        };
        if http.resumed || http.replied || http.root != root {
            let http = format!("{http:?}");
            return self.fail(|| format!("a stream is answered twice, or after it was resumed: {http}"));
        }
        http.reply = local_reply_headers(reply);
        http.replied = true;
        self.event_queue.schedule(self.now, SimEvent::LocalReply(id));
        self.check_wait(id);
    }

    /// Envoy sends the filter's local reply.
    pub(super) fn send_local_reply(&mut self, id: u64) {
        let Some(http) = self.http_streams.get_mut(&id) else {
            return;
        };
        let pairs = core::mem::take(&mut http.reply);
        self.respond(id, pairs, "wasm_fail_stream", "");
    }

    /// The filter ends a stream whose request is at a server, if its worker agrees: Envoy drops the stream's upstream and sends the reply.
    pub(super) fn evict(&mut self, root: u64, id: u64, sequence: u64, reply: &LocalReply) {
        let is_evicted = self.call_worker(root, |worker, now| worker.evict(now, sequence, reply.status));
        if is_evicted != Some(true) {
            return;
        }
        self.note(|| format!("root {root} evicts http {id}"));
        self.check_answer(reply);
        let Some(http) = self.http_streams.get_mut(&id) else {
            return self.fail(|| format!("http {id} is evicted after its end"));
        };
        if !http.resumed || http.replied || http.response_started || http.root != root {
            let http = format!("{http:?}");
            return self
                .fail(|| format!("a stream is evicted that waits, or whose answer has begun: {http}"));
        }
        http.reply = local_reply_headers(reply);
        http.replied = true;
        let (job, child) = (http.job.take(), http.child.take());
        if let Some(job) = job {
            self.end_job(job);
        }
        if let Some(child) = child {
            self.close_http_stream(child, "downstream_remote_disconnect");
        }
        self.summary.evictions += 1;
        self.send_local_reply(id);
    }

    /// Envoy tries the next host of the list.
    pub(super) fn try_next_host(&mut self, id: u64) {
        let Some(http) = self.http_streams.get_mut(&id) else {
            return;
        };
        // Envoy silently skips a host that isn't in the cluster.
        while http.hosts.get(http.hosts_tried).is_some()
            && http.hosts.get(http.hosts_tried) == self.envoys[http.envoy].missing_host.as_ref()
        {
            http.hosts_tried += 1;
        }
        let host = http.hosts.get(http.hosts_tried).cloned();
        let host = host.or_else(|| {
            // Without a list, Envoy's own load balancing chooses.
            let name = header(&http.headers, names::POOL_HEADER)?;
            let pool = self.scenario.pools.iter().find(|pool| pool.name == name)?;
            http.hosts_tried += 1;
            let index = self.rng.below(pool.servers.len() as u64) as usize;
            pool.servers.get(index).cloned()
        });
        let Some(host) = host else {
            return self.fail(|| format!("http {id} is resumed without a pool"));
        };
        http.attempts += 1;
        http.address.clone_from(&host);
        self.note(|| format!("http {id} is routed to {host}"));
        let envoy = self.http_streams.get(&id).map_or(0, |http| http.envoy);
        if host == Self::requeue_address(envoy) {
            self.requeue_to_self(id);
        } else {
            self.start_job(id, &host);
        }
    }

    /// Envoy routes a stream to its own requeue listener.
    fn requeue_to_self(&mut self, id: u64) {
        let Some(http) = self.http_streams.get(&id) else {
            return;
        };
        let (envoy, client) = (http.envoy, http.client);
        let (mut headers, body) = (http.headers.clone(), http.body.clone());
        if http.was_answered {
            headers.push((names::REFUSED_HEADER.to_owned(), names::REFUSED_BY_RESPONSE.to_owned()));
        }
        // The connection to an internal listener stays on its worker.
        let vm = self.roots.get(&http.root).map(|root| root.vm);
        let Some(root) = vm.and_then(|vm| self.envoys[envoy].requeue_roots[vm]) else {
            return self.event_queue.schedule(self.now, SimEvent::AttemptFailed(id, AttemptError::Refused));
        };
        self.summary.reentries += 1;
        let child = self.open_http_stream(root, client, Some(id), headers, body);
        if let Some(http) = self.http_streams.get_mut(&id) {
            http.child = Some(child);
        }
        self.receive_body(child);
    }

    /// An attempt failed: Envoy tries the next host after a short wait, or answers with 503.
    pub(super) fn attempt_failed(&mut self, id: u64, error: AttemptError) {
        let Some(http) = self.http_streams.get_mut(&id) else {
            return;
        };
        http.job = None;
        http.child = None;
        http.hosts_tried += 1;
        if http.hosts_tried < http.hosts.len() {
            let wait = self.rng.below(25 * MILLI);
            return self.event_queue.schedule(self.now + wait, SimEvent::TryNextHost(id));
        }
        let details = match error {
            AttemptError::Refused => "upstream_reset_before_response_started{remote_connection_failure}",
            AttemptError::Reset => "upstream_reset_before_response_started{connection_termination}",
        };
        let pairs = vec![(":status".to_owned(), "503".to_owned())];
        self.respond(id, pairs, details, details);
    }

    /// Envoy sends a whole response of its own. `details` are the response code details that the filter reads with the
    /// headers, `final_details` those at the end of the stream.
    fn respond(&mut self, id: u64, pairs: Pairs, details: &str, final_details: &str) {
        if let Some(responded) = self.start_response(id, pairs, details) {
            let body = responded.body.unwrap_or_else(|| b"{}".to_vec());
            self.end_response(id, &body, final_details);
        }
    }

    /// The headers of a response: a server's, another stream's, or Envoy's own. Returns how the filter handled them;
    /// `None` if the stream has ended or has a response already.
    pub(super) fn start_response(
        &mut self,
        id: u64,
        mut pairs: Pairs,
        details: &str,
    ) -> Option<ResponseHeadersAction> {
        let http = self.http_streams.get_mut(&id)?;
        if http.response_started {
            self.fail(|| format!("http {id} gets a second response"));
            return None;
        }
        http.response_started = true;
        let (root, sequence, parent) = (http.root, http.sequence, http.parent);
        let (address, attempts) = (http.address.clone(), http.attempts);
        if details == VIA_UPSTREAM && self.scenario.routes_set_served_header() {
            apply_edits(&mut pairs, &[HeaderEdit::Set(names::SERVED_HEADER, address.clone())]);
        }
        let properties =
            StreamProperties { upstream_address: &address, attempts, response_code_details: details };
        let bytes = abi_map(&pairs);
        let responded = self.call_worker(root, |worker, now| {
            worker.handle_response_headers(now, Some(sequence), Headers::new(&bytes), false, &properties)
        });
        self.reschedule_tick(root);
        let responded = responded.unwrap_or_default();
        apply_edits(&mut pairs, &responded.edits);
        match parent {
            Some(parent) => {
                self.start_response(parent, pairs, VIA_UPSTREAM);
            }
            None => self.client_receives_headers(id, &pairs),
        }
        Some(responded)
    }

    /// The end of a response's body.
    pub(super) fn end_response(&mut self, id: u64, body: &[u8], details: &str) {
        let Some(http) = self.http_streams.get(&id) else {
            return;
        };
        let (root, sequence, parent) = (http.root, http.sequence, http.parent);
        let read =
            |start: usize, length: usize| body.get(start..start.saturating_add(length)).map(<[u8]>::to_vec);
        self.call_worker(root, |worker, now| {
            worker.handle_response_body(now, sequence, body.len(), true, read);
        });
        match parent {
            Some(parent) => {
                if let Some(http) = self.http_streams.get_mut(&parent) {
                    http.child = None;
                }
                self.end_response(parent, body, VIA_UPSTREAM);
            }
            None => self.client_receives_end(id),
        }
        self.close_http_stream(id, details);
    }

    /// A stream's upstream disappears, before or during the response.
    pub(super) fn reset_http_stream(&mut self, id: u64, details: &str) {
        let Some(http) = self.http_streams.get(&id) else {
            return;
        };
        let (parent, response_started) = (http.parent, http.response_started);
        self.close_http_stream(id, details);
        match parent {
            Some(parent) if response_started => {
                if let Some(http) = self.http_streams.get_mut(&parent) {
                    http.child = None;
                }
                self.reset_http_stream(parent, "upstream_reset_after_response_started{remote_reset}");
            }
            Some(parent) => self.attempt_failed(parent, AttemptError::Reset),
            None => {}
        }
    }

    /// A stream ends: the filter gets its log callback, and Envoy drops the stream's upstream.
    pub(super) fn close_http_stream(&mut self, id: u64, details: &str) {
        let Some(http) = self.http_streams.remove(&id) else {
            return;
        };
        self.note(|| format!("http {id} ends: {details}"));
        if let Some(job) = http.job {
            self.end_job(job);
        }
        if let Some(child) = http.child {
            self.close_http_stream(child, "downstream_remote_disconnect");
        }
        if http.parent.is_none() {
            self.client_stream_closed(http.client);
        }
        // The filter must report the end of every request that a companion may count.
        if (http.resumed || http.registered_with.is_some() && !http.replied)
            && let Some(root) = self.roots.get_mut(&http.root).filter(|root| !root.dead)
            && !root.is_end_reported(http.sequence)
        {
            root.unreported_ends.insert(http.sequence);
        }
        let properties = StreamProperties {
            upstream_address: &http.address,
            attempts: http.attempts,
            response_code_details: details,
        };
        let (root, sequence) = (http.root, http.sequence);
        self.call_worker(root, |worker, now| worker.handle_log(now, sequence, &properties));
        self.reschedule_tick(root);
        if let Some(root) = self.roots.get_mut(&http.root)
            && root.http_streams.get(&sequence) == Some(&id)
        {
            root.http_streams.remove(&sequence);
        }
        self.remove_trapped_root(http.root);
    }

    /// The root context of these streams has trapped: a paused stream stays paused until its client gives up.
    pub(super) fn abandon_http_streams(&mut self, root: u64) {
        let ids: Option<Vec<u64>> =
            self.roots.get(&root).map(|root| root.http_streams.values().copied().collect());
        for id in ids.unwrap_or_default() {
            let patience = self.rng.between(20, 94) * SECOND;
            self.event_queue.schedule(self.now + patience, SimEvent::ClientGivesUp(id));
        }
    }

    pub(super) fn client_gives_up(&mut self, id: u64) {
        if self.http_streams.contains_key(&id) {
            self.reset_http_stream(id, "downstream_remote_disconnect");
        }
    }

    /// An Envoy process ends with all its HTTP streams.
    pub(super) fn drop_http_streams(&mut self, envoy: usize) {
        let ids: Vec<u64> =
            self.http_streams.iter().filter(|(_, http)| http.envoy == envoy).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(http) = self.http_streams.remove(&id) else {
                continue;
            };
            if let Some(job) = http.job {
                self.end_job(job);
            }
            if http.parent.is_none() {
                self.client_stream_closed(http.client);
            }
        }
    }
}
