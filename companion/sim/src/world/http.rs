//! HTTP streams inside an Envoy: paused by the filter, resumed or answered by it, routed along a list of hosts, and
//! ended once, whatever ends them.
//!
//! The last host of a list may be this Envoy itself: then the stream's upstream is another stream, whose client it is.

use penstock_filter_core::effect::{BodyAction, HeadersAction, ResponseHeadersAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::{Headers, serialize};
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::properties::Properties;
use penstock_filter_core::rewrite::Rewrite;
use penstock_wire::names;

use super::World;
use super::agenda::{Due, MILLI, Nanos, SECOND, Why};

/// What Envoy says of an answer that isn't its own.
pub(super) const VIA_UPSTREAM: &str = "via_upstream";
/// Which server answers, in its own words.
pub(super) const SERVER_HEADER: &str = "x-server";

/// Headers, in order.
pub(super) type Pairs = Vec<(String, String)>;

/// An HTTP stream that isn't over.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) root: u64,
    pub(super) envoy: usize,
    pub(super) client: u64,
    /// The stream whose upstream this is; none: a client's own.
    pub(super) parent: Option<u64>,
    /// The stream that is this one's upstream.
    pub(super) child: Option<u64>,
    pub(super) sequence: u64,
    pub(super) arrived: Nanos,
    headers: Pairs,
    body: String,
    /// All of its request was seen by the filter.
    pub(super) whole: bool,
    pub(super) resumed: bool,
    /// By which companion; 0: by the filter itself.
    pub(super) life: u64,
    /// Its companion has released it, though it runs.
    pub(super) excused: bool,
    /// Which companion knows it,
    pub(super) known: u64,
    /// and which one counts it as running.
    pub(super) held: u64,
    /// It came earlier than the companion can know.
    pub(super) unsure: bool,
    /// The filter's local reply is on its way.
    pub(super) replied: bool,
    reply: Pairs,
    hosts: Vec<String>,
    tried: usize,
    pub(super) job: Option<u64>,
    pub(super) address: String,
    attempts: u64,
    /// The answer's head went downstream.
    begun: bool,
}

impl Http {
    /// It isn't where it was granted first.
    pub(super) const fn is_fallback(&self) -> bool {
        self.tried > 0
    }
}

/// What Envoy says of a stream.
struct Facts<'a> {
    address: &'a str,
    attempts: u64,
    details: &'a str,
}

impl Properties for Facts<'_> {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["upstream", "address"] => Some(self.address.as_bytes().to_vec()),
            ["upstream", "request_attempt_count"] => Some(self.attempts.to_le_bytes().to_vec()),
            ["response", "code_details"] => Some(self.details.as_bytes().to_vec()),
            ["source", "address"] => Some(b"192.0.2.7:4711".to_vec()),
            _ => None,
        }
    }
}

fn reply(answer: &LocalReply) -> Pairs {
    let status = (":status".to_owned(), answer.status.to_string());
    let headers = answer
        .headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    core::iter::once(status).chain(headers).collect()
}

fn map(pairs: &Pairs) -> Vec<u8> {
    serialize(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

fn apply(pairs: &mut Pairs, edits: &[HeaderEdit]) {
    for edit in edits {
        match edit {
            HeaderEdit::Remove(name) => pairs.retain(|(known, _)| known != name),
            HeaderEdit::Set(name, value) => {
                pairs.retain(|(known, _)| known != name);
                pairs.push(((*name).to_owned(), value.clone()));
            }
        }
    }
}

pub(super) fn header<'a>(pairs: &'a Pairs, name: &str) -> Option<&'a str> {
    pairs
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

impl World {
    /// A request's head reaches a root context. `parent`: the stream it comes from, if it enters again.
    pub(super) fn start_http(
        &mut self,
        root: u64,
        client: u64,
        parent: Option<u64>,
        headers: Pairs,
        body: String,
    ) -> u64 {
        self.https_begun += 1;
        let id = self.https_begun;
        let envoy = self.roots.get(&root).map_or(0, |it| it.envoy);
        self.clients[client as usize].roots.push(root);
        let mut http = Http {
            root,
            envoy,
            client,
            parent,
            child: None,
            sequence: 0,
            arrived: self.now,
            headers,
            body,
            whole: false,
            resumed: false,
            life: 0,
            excused: false,
            known: 0,
            held: 0,
            unsure: false,
            replied: false,
            reply: vec![(":status".to_owned(), "503".to_owned())],
            hosts: Vec::new(),
            tried: 0,
            job: None,
            address: String::new(),
            attempts: 0,
            begun: false,
        };
        let facts = Facts {
            address: "",
            attempts: 0,
            details: "",
        };
        let context = u32::try_from(id).unwrap_or(u32::MAX);
        let bytes = map(&http.headers);
        let headed = self.with(root, |worker, now| {
            worker.handle_request_headers(now, context, Headers::new(&bytes), false, &facts)
        });
        match headed {
            Some(HeadersAction::Pause(sequence, edits)) => {
                http.sequence = sequence;
                apply(&mut http.headers, &edits);
                self.note(|| format!("http {id} of client {client} is {sequence} of root {root}"));
                self.enter(id, http);
            }
            Some(HeadersAction::Reply(sequence, answer)) => {
                http.sequence = sequence;
                http.reply = reply(&answer);
                http.replied = true;
                self.enter(id, http);
                self.agenda.put(self.now, Due::Reply(id));
            }
            Some(HeadersAction::Pass(_) | HeadersAction::Unroutable(_)) => {
                self.broken(|| format!("http {id} on a queued path passes through"));
            }
            // Its VM isn't there.
            None => {
                http.replied = true;
                self.https.insert(id, http);
                self.agenda.put(self.now, Due::Reply(id));
            }
        }
        id
    }

    fn enter(&mut self, id: u64, http: Http) {
        if let Some(root) = self.roots.get_mut(&http.root) {
            root.https.insert(http.sequence, id);
        }
        self.https.insert(id, http);
    }

    /// The rest of its body comes.
    pub(super) fn body_in(&mut self, id: u64) {
        let Some(http) = self.https.get_mut(&id).filter(|it| !it.replied && !it.whole) else {
            return;
        };
        http.whole = true;
        let (root, sequence, body) = (http.root, http.sequence, http.body.clone());
        let read = |start: usize, length: usize| {
            body.as_bytes()
                .get(start..start.saturating_add(length))
                .map(<[u8]>::to_vec)
        };
        let bodied = self.with(root, |worker, now| {
            worker.handle_request_body(now, sequence, body.len(), true, read)
        });
        match bodied {
            None | Some(BodyAction::Pause) => {}
            Some(BodyAction::Continue(edits)) => self.resumed(root, id, &edits, None),
            Some(BodyAction::Reply(answer)) => self.answered(root, id, &answer),
        }
    }

    /// The filter resumes a stream.
    pub(super) fn resumed(&mut self, root: u64, id: u64, edits: &[HeaderEdit], rewrite: Option<&Rewrite>) {
        self.note(|| format!("root {root} resumes http {id}: {edits:?}"));
        let life = self.by_companion.map_or(0, |(life, _)| life);
        let Some(http) = self.https.get_mut(&id) else {
            return self.broken(|| format!("http {id} was resumed after its end"));
        };
        if http.resumed || http.replied || http.root != root || !http.whole {
            let http = format!("{http:?}");
            return self.broken(|| format!("resumed twice, or never to be: {http}"));
        }
        http.resumed = true;
        http.life = life;
        apply(&mut http.headers, edits);
        if let Some(rewrite) = rewrite {
            let text = String::from_utf8_lossy(&rewrite.text);
            http.body.replace_range(rewrite.range.clone(), &text);
        }
        let hosts = header(&http.headers, names::ROUTE_HEADER)
            .or_else(|| header(&http.headers, names::ENDPOINT_HEADER))
            .unwrap_or_default();
        http.hosts = hosts
            .split(',')
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect();
        self.agenda.put(self.now, Due::Attempt(id));
        self.check_resumed(id);
    }

    /// The filter answers a stream that was paused.
    pub(super) fn answered(&mut self, root: u64, id: u64, answer: &LocalReply) {
        let status = answer.status;
        self.note(|| format!("root {root} answers http {id} with {status}"));
        let Some(http) = self.https.get_mut(&id) else {
            return self.broken(|| format!("http {id} was answered after its end"));
        };
        if http.resumed || http.replied || http.root != root {
            let http = format!("{http:?}");
            return self.broken(|| format!("answered twice, or after it was resumed: {http}"));
        }
        http.reply = reply(answer);
        http.replied = true;
        self.agenda.put(self.now, Due::Reply(id));
    }

    /// The filter's local reply goes out.
    pub(super) fn reply_out(&mut self, id: u64) {
        let Some(http) = self.https.get_mut(&id) else {
            return;
        };
        let pairs = core::mem::take(&mut http.reply);
        self.head(id, pairs, "wasm_fail_stream", "", true);
    }

    /// Envoy tries the next host.
    pub(super) fn attempt(&mut self, id: u64) {
        let Some(http) = self.https.get_mut(&id) else {
            return;
        };
        // A host that isn't in the cluster is passed over without a word.
        while http.hosts.get(http.tried).is_some()
            && http.hosts.get(http.tried) == self.envoys[http.envoy].blind.as_ref()
        {
            http.tried += 1;
        }
        let host = http.hosts.get(http.tried).cloned();
        let host = host.or_else(|| {
            // Without a list Envoy's own balancing chooses.
            let pool = header(&http.headers, names::POOL_HEADER)?;
            let pool = self.setting.pools.iter().find(|it| it.name == pool)?;
            http.tried += 1;
            let at = self.dice.below(pool.servers.len() as u64) as usize;
            pool.servers.get(at).cloned()
        });
        let Some(host) = host else {
            return self.broken(|| format!("http {id} is sent to no pool"));
        };
        http.attempts += 1;
        http.address.clone_from(&host);
        self.note(|| format!("http {id} goes to {host}"));
        let envoy = self.https.get(&id).map_or(0, |it| it.envoy);
        if host == Self::reentry(envoy) {
            self.reenter(id);
        } else {
            self.begin_job(id, &host);
        }
    }

    /// The stream's upstream is this Envoy itself.
    fn reenter(&mut self, id: u64) {
        let Some(http) = self.https.get(&id) else {
            return;
        };
        let (envoy, client) = (http.envoy, http.client);
        let (headers, body) = (http.headers.clone(), http.body.clone());
        let backs: Vec<u64> = self.envoys[envoy].backs.iter().flatten().copied().collect();
        let Some(back) = self.dice.any(&backs) else {
            return self.agenda.put(self.now, Due::Failed(id, Why::Refused));
        };
        self.tally.reentries += 1;
        let child = self.start_http(back, client, Some(id), headers, body);
        if let Some(http) = self.https.get_mut(&id) {
            http.child = Some(child);
        }
        self.body_in(child);
    }

    /// An attempt came to nothing.
    pub(super) fn failed(&mut self, id: u64, why: Why) {
        let Some(http) = self.https.get_mut(&id) else {
            return;
        };
        http.job = None;
        http.child = None;
        http.tried += 1;
        if http.tried < http.hosts.len() {
            let wait = self.dice.below(25 * MILLI);
            return self.agenda.put(self.now + wait, Due::Attempt(id));
        }
        let details = match why {
            Why::Refused => "upstream_reset_before_response_started{remote_connection_failure}",
            Why::Reset => "upstream_reset_before_response_started{connection_termination}",
        };
        let pairs = vec![(":status".to_owned(), "503".to_owned())];
        self.head(id, pairs, details, details, true);
    }

    /// An answer's head is there: a server's, another stream's, or Envoy's own. `end`: the whole answer follows at
    /// once, and the log says `at_end`.
    pub(super) fn head(&mut self, id: u64, mut pairs: Pairs, details: &str, at_end: &str, end: bool) {
        let Some(http) = self.https.get_mut(&id) else {
            return;
        };
        if http.begun {
            return self.broken(|| format!("http {id} is answered twice"));
        }
        http.begun = true;
        let (root, sequence, parent) = (http.root, http.sequence, http.parent);
        let (address, attempts) = (http.address.clone(), http.attempts);
        if details == VIA_UPSTREAM && self.setting.routes_tell() {
            apply(
                &mut pairs,
                &[HeaderEdit::Set(names::SERVED_HEADER, address.clone())],
            );
        }
        let facts = Facts {
            address: &address,
            attempts,
            details,
        };
        let bytes = map(&pairs);
        let responded = self.with(root, |worker, now| {
            worker.handle_response_headers(now, Some(sequence), Headers::new(&bytes), false, &facts)
        });
        let ResponseHeadersAction { edits, body } = responded.unwrap_or_default();
        apply(&mut pairs, &edits);
        match parent {
            Some(parent) => self.head(parent, pairs, VIA_UPSTREAM, VIA_UPSTREAM, false),
            None => self.client_sees(id, &pairs),
        }
        if end {
            let body = body.unwrap_or_else(|| b"{}".to_vec());
            self.tail(id, &body, at_end);
        }
    }

    /// The last of an answer's body is there.
    pub(super) fn tail(&mut self, id: u64, body: &[u8], details: &str) {
        let Some(http) = self.https.get(&id) else {
            return;
        };
        let (root, sequence, parent) = (http.root, http.sequence, http.parent);
        let read =
            |start: usize, length: usize| body.get(start..start.saturating_add(length)).map(<[u8]>::to_vec);
        self.with(root, |worker, now| {
            worker.handle_response_body(now, sequence, body.len(), true, read);
        });
        match parent {
            Some(parent) => {
                if let Some(http) = self.https.get_mut(&parent) {
                    http.child = None;
                }
                self.tail(parent, body, "via_upstream");
            }
            None => self.client_served(id),
        }
        self.log(id, details);
    }

    /// The answer breaks off, or never comes and nobody is left to say so.
    pub(super) fn cut(&mut self, id: u64, details: &str) {
        let Some(http) = self.https.get(&id) else {
            return;
        };
        let (parent, begun) = (http.parent, http.begun);
        self.log(id, details);
        match parent {
            Some(parent) if begun => {
                if let Some(http) = self.https.get_mut(&parent) {
                    http.child = None;
                }
                self.cut(parent, "upstream_reset_after_response_started{remote_reset}");
            }
            Some(parent) => self.failed(parent, Why::Reset),
            None => {}
        }
    }

    /// A stream is over: its log entry is written, and what was upstream of it goes.
    pub(super) fn log(&mut self, id: u64, details: &str) {
        let Some(http) = self.https.remove(&id) else {
            return;
        };
        self.note(|| format!("http {id} is over: {details}"));
        if let Some(job) = http.job {
            self.end_job(job);
        }
        if let Some(child) = http.child {
            self.log(child, "downstream_remote_disconnect");
        }
        if http.parent.is_none() {
            self.client_gone(http.client);
        }
        // Whatever the filter has promised of it, it must say of its end.
        if (http.resumed || http.known > 0 && !http.replied)
            && let Some(root) = self.roots.get_mut(&http.root).filter(|it| !it.dead)
            && !root.ended.contains(&http.sequence)
        {
            root.owed.insert(http.sequence);
        }
        let facts = Facts {
            address: &http.address,
            attempts: http.attempts,
            details,
        };
        let sequence = http.sequence;
        self.with(http.root, |worker, now| worker.handle_log(now, sequence, &facts));
        if let Some(root) = self.roots.get_mut(&http.root)
            && root.https.get(&sequence) == Some(&id)
        {
            root.https.remove(&sequence);
        }
        self.bury(http.root);
    }

    /// Its root context has trapped: what is paused stays so until Envoy gives it up.
    pub(super) fn orphan_https(&mut self, root: u64) {
        let here = self
            .roots
            .get(&root)
            .map(|it| it.https.values().copied().collect::<Vec<u64>>());
        for id in here.unwrap_or_default() {
            let patience = self.dice.between(20, 94) * SECOND;
            self.agenda.put(self.now + patience, Due::Idle(id));
        }
    }

    /// Envoy gives an idle stream up.
    pub(super) fn idle(&mut self, id: u64) {
        if self.https.contains_key(&id) {
            self.cut(id, "stream_idle_timeout");
        }
    }

    /// Everything in an Envoy is gone.
    pub(super) fn drop_https(&mut self, envoy: usize) {
        let here: Vec<u64> = self
            .https
            .iter()
            .filter(|(_, it)| it.envoy == envoy)
            .map(|(id, _)| *id)
            .collect();
        for id in here {
            let Some(http) = self.https.remove(&id) else {
                continue;
            };
            if let Some(job) = http.job {
                self.end_job(job);
            }
            if http.parent.is_none() {
                self.client_gone(http.client);
            }
        }
    }
}
