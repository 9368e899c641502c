//! Envoy's callbacks for one HTTP stream, without `unsafe` for the callers.

use core::cell::RefCell;
use core::hash::Hasher as _;
use core::ops::{ControlFlow, Range};
use std::sync::OnceLock;

use hashbrown::HashSet;

use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::limits::READ_BYTES_MIN;
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::properties::{Properties, received_body_bytes};
use penstock_filter_core::rewrite::{BufferedBody, Rewrite, visit_pieces};
use penstock_filter_core::session::Epoch;
use penstock_filter_core::time::{Clock, Instant};

use penstock_wire::names;
use siphasher::sip::SipHasher13;

use crate::abi::{
    self, Attribute, Body, Envoy, EnvoyBytes, EnvoyHeader, Level, Map, ModuleBytes, ModuleHeader,
};

/// Writes a line into Envoy's log.
pub(crate) fn log(level: Level, text: &str) {
    // SAFETY: Envoy reads the text before it returns.
    unsafe { abi::log(level, ModuleBytes::new(text.as_bytes())) };
}

/// Has Envoy make a counter for a configuration; `None`: it makes none.
pub(crate) fn new_counter(config: Envoy, name: &str) -> Option<usize> {
    let mut counter = 0;
    // SAFETY: the configuration is being made, Envoy copies the name, and there are no labels.
    let result = unsafe {
        abi::define_counter(config, ModuleBytes::new(name.as_bytes()), core::ptr::null(), 0, &raw mut counter)
    };
    (result == abi::METRICS_SUCCESS).then_some(counter)
}

/// Reads the monotonic clock; its zero is the module's start.
pub(crate) fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// The monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct HostClock;

impl Clock for HostClock {
    fn now(self) -> Instant {
        now()
    }
}

/// Draws random bits; `None` if the system has none.
pub(crate) fn random_bits() -> Option<RandomBits> {
    let mut bytes = [0; 40];
    getrandom::fill(&mut bytes).ok()?;
    let (numbers, key) = bytes.split_first_chunk::<24>()?;
    let [hi, lo, envoy] = *numbers.as_chunks::<8>().0.first_chunk()?;
    let [hi, lo, envoy] = [hi, lo, envoy].map(u64::from_le_bytes);
    Some(RandomBits { epoch: Epoch { hi, lo }, envoy, key: key.try_into().ok()? })
}

/// Envoy's bytes. They must be valid until the caller has used them.
pub(crate) fn bytes<'a>(bytes: EnvoyBytes) -> &'a [u8] {
    if bytes.data.is_null() || bytes.length == 0 {
        return &[];
    }
    // SAFETY: Envoy keeps them until the end of the hook, or until the next change; no caller keeps them longer.
    unsafe { core::slice::from_raw_parts(bytes.data, bytes.length) }
}

const NO_HEADER: EnvoyHeader = EnvoyHeader { key: EnvoyBytes::EMPTY, value: EnvoyBytes::EMPTY };

/// Reads `count` headers, which `fetch` writes.
fn read_headers<T>(
    count: usize,
    fetch: impl FnOnce(*mut EnvoyHeader) -> bool,
    read: impl FnOnce(Headers<'_>) -> T,
) -> T {
    const FEW: usize = 32;
    let mut few = ([NO_HEADER; FEW], [(&[][..], &[][..]); FEW]);
    let mut many = (Vec::new(), Vec::new());
    let (fetched, pairs) = match (few.0.get_mut(..count), few.1.get_mut(..count)) {
        (Some(fetched), Some(pairs)) => (fetched, pairs),
        _ => {
            many.0.resize(count, NO_HEADER);
            many.1.resize(count, (&[][..], &[][..]));
            (many.0.as_mut_slice(), many.1.as_mut_slice())
        }
    };
    if !fetch(fetched.as_mut_ptr()) {
        return read(Headers::of_pairs(&[]));
    }
    for (pair, header) in pairs.iter_mut().zip(&*fetched) {
        *pair = (bytes(header.key), bytes(header.value));
    }
    read(Headers::of_pairs(pairs))
}

/// Envoy's response code details of a reply of the filter.
const DETAILS: &[u8] = b"penstock";

/// The most connections that one worker thread remembers. Beyond them it forgets all, and takes each for new once.
const CONNECTIONS_MAX: usize = 8_192;

thread_local! {
    /// Connections to servers that have carried an answer. A new connection between the same two ports passes for the old one.
    static CONNECTIONS: RefCell<HashSet<u64>> = RefCell::default();
}

/// A stream to which the filter is about to reply.
pub(crate) struct Replying(pub(crate) Filter);

impl Properties for Replying {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["response", "code_details"] => Some(DETAILS.to_vec()),
            _ => self.0.property(path),
        }
    }
}

/// An HTTP stream of Envoy's, by the pointer to its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter(pub(crate) Envoy);

impl Filter {
    /// The number of the worker thread that carries the stream.
    pub(crate) fn worker(self) -> usize {
        // SAFETY: the filter is alive.
        usize::try_from(unsafe { abi::worker_index(self.0) }).unwrap_or(0)
    }

    /// Adds to a counter of the filter's configuration.
    pub(crate) fn increment(self, counter: usize, value: u64) {
        // SAFETY: the filter is alive, and the counter has no labels.
        unsafe { abi::increment_counter(self.0, counter, core::ptr::null(), 0, value) };
    }

    /// Reads a whole header map. It must not be changed meanwhile.
    pub(crate) fn with_headers<T>(self, map: Map, read: impl FnOnce(Headers<'_>) -> T) -> T {
        // SAFETY: the filter is alive, and the place has room for as many headers as Envoy has just counted.
        unsafe {
            read_headers(abi::headers_size(self.0, map), |place| abi::headers(self.0, map, place), read)
        }
    }

    /// Edits a header map, and sets the stream's properties. To the only endpoint of a list Envoy sends the request without asking its load
    /// balancing, and to no other.
    pub(crate) fn edit(self, map: Map, edits: &[HeaderEdit]) {
        let set = |name: &str, value: ModuleBytes| {
            // SAFETY: the filter is alive, and Envoy copies both strings before it returns.
            unsafe { abi::set_header(self.0, map, ModuleBytes::new(name.as_bytes()), value) };
        };
        let add = |name: &str, value: ModuleBytes| {
            // SAFETY: as above.
            unsafe { abi::add_header(self.0, map, ModuleBytes::new(name.as_bytes()), value) };
        };
        for edit in edits {
            match edit {
                HeaderEdit::Remove(name) => set(name, ModuleBytes::NONE),
                HeaderEdit::Set(name, value) => set(name, ModuleBytes::new(value.as_bytes())),
                HeaderEdit::Add(name, value) => {
                    add(name, ModuleBytes::new(value.as_bytes()));
                    if *name == names::ENDPOINT_HEADER && !value.contains(',') {
                        let address = ModuleBytes::new(value.as_bytes());
                        // SAFETY: the filter is alive, and Envoy copies the address before it returns.
                        unsafe { abi::set_upstream_host(self.0, address, true) };
                    }
                }
                HeaderEdit::SetStatic(name, value) => set(name, ModuleBytes::new(value.as_bytes())),
                HeaderEdit::SetProperty(name, value) => {
                    // The bootstrap has the names under which a WebAssembly module sets its properties.
                    let key = format!("wasm.{name}");
                    let value = ModuleBytes::new(value.as_bytes());
                    // SAFETY: the filter is alive, and Envoy copies both strings before it returns.
                    unsafe { abi::set_filter_state(self.0, ModuleBytes::new(key.as_bytes()), value) };
                }
            }
        }
        if matches!(map, Map::Request) && !edits.is_empty() {
            // SAFETY: the filter is alive.
            unsafe { abi::clear_route_cache(self.0) };
        }
    }

    /// Sends a reply with these edits of its headers. Envoy doesn't pass a filter's own reply through the filter.
    pub(crate) fn reply(self, reply: &LocalReply, edits: &[HeaderEdit]) {
        let mut status = reply.status;
        let mut headers: Vec<(&str, &str)> =
            reply.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        for edit in edits {
            let (name, value) = match edit {
                HeaderEdit::Remove(name) => (name.as_ref(), None),
                HeaderEdit::Add(name, value) | HeaderEdit::Set(name, value) => (*name, Some(value.as_str())),
                HeaderEdit::SetStatic(name, value) => (*name, Some(*value)),
                HeaderEdit::SetProperty(..) => continue,
            };
            headers.retain(|(present, _)| *present != name);
            match value {
                Some(value) if name == ":status" => status = value.parse().unwrap_or(status),
                Some(value) => headers.push((name, value)),
                None => {}
            }
        }
        let headers: Vec<ModuleHeader> = headers
            .iter()
            .map(|(name, value)| ModuleHeader::new(name.as_bytes(), value.as_bytes()))
            .collect();
        let (body, details) = (ModuleBytes::new(&reply.body), ModuleBytes::new(DETAILS));
        // SAFETY: the filter is alive, and Envoy copies all of it before it returns.
        unsafe { abi::send_response(self.0, status, headers.as_ptr(), headers.len(), body, details) };
    }

    pub(crate) fn resume_request(self) {
        // SAFETY: the filter is alive.
        unsafe { abi::continue_decoding(self.0) };
    }

    pub(crate) fn resume_response(self) {
        // SAFETY: the filter is alive.
        unsafe { abi::continue_encoding(self.0) };
    }

    /// Restarts the stream: Envoy destroys this filter, among the others, and starts a new stream with the request. `status`: that of the
    /// response, for Envoy's log. Returns `false` if Envoy can't.
    pub(crate) fn restart(self, status: u32) -> bool {
        let status = status.to_string();
        let headers = [ModuleHeader::new(b":status", status.as_bytes())];
        // SAFETY: the filter is alive, and Envoy copies the header before it returns. The caller keeps the stream alive.
        unsafe { abi::recreate_stream(self.0, headers.as_ptr(), headers.len()) }
    }

    /// Resets the stream on both sides.
    pub(crate) fn reset(self) {
        // SAFETY: the filter is alive.
        unsafe { abi::reset_stream(self.0, abi::LOCAL_RESET, ModuleBytes::new(DETAILS)) };
    }

    fn text(self, attribute: Attribute) -> Option<Vec<u8>> {
        let mut value = EnvoyBytes::EMPTY;
        // SAFETY: the filter is alive, and the value has room for one result.
        unsafe { abi::attribute_text(self.0, attribute, &raw mut value) }.then(|| bytes(value).to_vec())
    }

    fn number(self, attribute: Attribute) -> Option<Vec<u8>> {
        let mut value = 0;
        // SAFETY: the filter is alive, and the value has room for one result.
        unsafe { abi::attribute_number(self.0, attribute, &raw mut value) }
            .then(|| value.to_le_bytes().to_vec())
    }

    /// Notes the connection to the server that has answered without an error.
    pub(crate) fn note_connection(self) {
        if let Some(connection) = self.connection() {
            CONNECTIONS.with_borrow_mut(|known| {
                if known.len() >= CONNECTIONS_MAX {
                    known.clear();
                }
                known.insert(connection);
            });
        }
    }

    /// The connection to the server, by a hash of its two addresses.
    fn connection(self) -> Option<u64> {
        let mut hasher = SipHasher13::new();
        for end in [Attribute::UpstreamLocalAddress, Attribute::UpstreamAddress] {
            hasher.write(&self.text(end)?);
        }
        Some(hasher.finish())
    }

    /// How long the stream waited for its connection: no time if the connection has carried an answer before. Envoy tells its access logs
    /// alone.
    fn time_to_connection(self) -> Option<Vec<u8>> {
        let connection = self.connection()?;
        let is_known = CONNECTIONS.with_borrow(|known| known.contains(&connection));
        is_known.then(|| 0_i64.to_le_bytes().to_vec())
    }

    /// A value of another filter's dynamic metadata, which the bootstrap copies into the stream's filter state: Envoy gives a module only what
    /// lies directly in a namespace.
    fn metadata(self, keys: &[&str]) -> Option<Vec<u8>> {
        let key = format!("penstock.metadata/{}", keys.join("/"));
        let mut value = EnvoyBytes::EMPTY;
        // SAFETY: the filter is alive, and the value has room for one result.
        unsafe { abi::filter_state(self.0, ModuleBytes::new(key.as_bytes()), &raw mut value) }
            .then(|| bytes(value).to_vec())
    }
}

impl Properties for Filter {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["source", "address"] => self.text(Attribute::SourceAddress),
            ["upstream", "address"] => self.text(Attribute::UpstreamAddress),
            ["upstream", "transport_failure_reason"] => self.text(Attribute::UpstreamTransportFailureReason),
            ["upstream", "request_attempt_count"] => self.number(Attribute::UpstreamRequestAttemptCount),
            ["response", "code_details"] => self.text(Attribute::ResponseCodeDetails),
            ["response", "flags"] => self.number(Attribute::ResponseFlags),
            ["upstream", "cx_pool_ready_duration"] => self.time_to_connection(),
            ["request", "total_size"] => self.number(Attribute::RequestTotalSize),
            ["metadata", "filter_metadata", keys @ ..] => self.metadata(keys),
            _ => None,
        }
    }

    fn can_restart(&self, body_bytes: u64) -> bool {
        // SAFETY: the filter is alive.
        let (trailers, kept) = unsafe {
            (abi::headers_size(self.0, Map::RequestTrailers), abi::body_size(self.0, Body::BufferedRequest))
        };
        // Envoy leaves trailers out. Its router keeps the whole body, which it gets in one piece, or nothing of it.
        trailers == 0 && (body_bytes == 0 || kept > 0)
    }
}

/// One entry of Envoy's log of attempts.
pub(crate) struct LogEntry(pub(crate) Envoy);

impl LogEntry {
    /// Reads a whole header map.
    pub(crate) fn with_headers<T>(&self, map: Map, read: impl FnOnce(Headers<'_>) -> T) -> T {
        // SAFETY: the entry is alive during the hook, and the place has room for as many headers as Envoy has just counted.
        unsafe {
            read_headers(
                abi::logged_headers_size(self.0, map),
                |place| abi::logged_headers(self.0, map, place),
                read,
            )
        }
    }

    fn text(&self, attribute: Attribute) -> Option<Vec<u8>> {
        let mut value = EnvoyBytes::EMPTY;
        // SAFETY: the entry is alive during the hook, and the value has room for one result.
        unsafe { abi::logged_text(self.0, attribute, &raw mut value) }.then(|| bytes(value).to_vec())
    }
}

impl Properties for LogEntry {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        match path {
            ["upstream", "address"] => self.text(Attribute::UpstreamAddress),
            ["upstream", "transport_failure_reason"] => self.text(Attribute::UpstreamTransportFailureReason),
            // SAFETY: the entry is alive during the hook.
            ["response", "flags"] => Some(unsafe { abi::logged_flags(self.0) }.to_le_bytes().to_vec()),
            ["upstream", "cx_pool_ready_duration"] => {
                // SAFETY: the entry is alive during the hook.
                let nanos = unsafe { abi::logged_pool_ready_ns(self.0) };
                (nanos >= 0).then(|| nanos.to_le_bytes().to_vec())
            }
            _ => None,
        }
    }
}

/// The body of a stream's request or response: what Envoy buffers of it, then what has just arrived.
pub(crate) struct StreamBody {
    filter: Filter,
    is_request: bool,
    /// The hook for arriving bytes runs.
    is_arriving: bool,
}

impl StreamBody {
    /// The body in its own hook.
    pub(crate) const fn arriving(filter: Filter, is_request: bool) -> Self {
        Self { filter, is_request, is_arriving: true }
    }

    /// The request's body outside of its hook: all of it is buffered.
    pub(crate) const fn buffered_request(filter: Filter) -> Self {
        Self { filter, is_request: true, is_arriving: false }
    }

    /// The parts of the body, in order.
    fn parts(&self) -> [Option<Body>; 2] {
        let (buffered, received) = match self.is_request {
            true => (Body::BufferedRequest, Body::ReceivedRequest),
            false => (Body::BufferedResponse, Body::ReceivedResponse),
        };
        if !self.is_arriving {
            return [Some(buffered), None];
        }
        // What a filter before this one buffered arrives, and is Envoy's buffer.
        // SAFETY: the filter is alive.
        let is_the_buffer = unsafe {
            match self.is_request {
                true => abi::received_buffered_request(self.filter.0),
                false => abi::received_buffered_response(self.filter.0),
            }
        };
        [(!is_the_buffer).then_some(buffered), Some(received)]
    }

    /// How many bytes there are.
    pub(crate) fn size(&self) -> usize {
        self.parts().into_iter().flatten().map(|part| self.part_size(part)).fold(0, usize::saturating_add)
    }

    /// How many bytes a part has.
    fn part_size(&self, part: Body) -> usize {
        // SAFETY: the filter is alive.
        unsafe { abi::body_size(self.filter.0, part) }
    }

    /// The pieces in which Envoy keeps a part. They are valid until Envoy's next change of the part.
    fn chunks(&self, part: Body) -> Vec<EnvoyBytes> {
        // SAFETY: the filter is alive.
        let count = unsafe { abi::body_chunks_size(self.filter.0, part) };
        let mut chunks = vec![EnvoyBytes::EMPTY; count];
        // SAFETY: the filter is alive, and there is room for as many chunks as Envoy has just counted.
        if count == 0 || !unsafe { abi::body_chunks(self.filter.0, part, chunks.as_mut_ptr()) } {
            return Vec::new();
        }
        chunks
    }

    /// Passes the bytes of `range` to `take` where Envoy keeps them. `take` must not call Envoy.
    fn visit_in_place<B>(
        &self,
        range: &Range<usize>,
        mut take: impl FnMut(&[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Range { mut start, mut end } = *range;
        for part in self.parts().into_iter().flatten() {
            let size = self.part_size(part);
            // A long body comes in many pieces, and those that have been read needn't be listed each time.
            if start < size {
                visit_pieces(self.chunks(part).into_iter().map(bytes), &(start..end), &mut take)?;
            }
            start = start.saturating_sub(size);
            end = end.saturating_sub(size);
        }
        ControlFlow::Continue(())
    }

    /// Adds a copy of the bytes of `range` to `copied`.
    fn copy(&self, range: Range<usize>, copied: &mut Vec<u8>) {
        let _: ControlFlow<()> = self.visit_in_place(&range, |piece| {
            copied.extend_from_slice(piece);
            ControlFlow::Continue(())
        });
    }

    /// Puts `content` in the place of the whole body.
    pub(crate) fn replace(&mut self, content: &[u8]) -> bool {
        let mut last = None;
        for part in self.parts().into_iter().flatten() {
            // SAFETY: the filter is alive.
            let is_there = unsafe { abi::drain_body(self.filter.0, part, usize::MAX) };
            if is_there || last.is_none() {
                last = Some(part);
            }
        }
        // SAFETY: the filter is alive, and Envoy copies the bytes before it returns.
        last.is_some_and(|part| unsafe { abi::append_body(self.filter.0, part, ModuleBytes::new(content)) })
    }
}

impl BufferedBody for StreamBody {
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
        let mut read = Vec::with_capacity(length.min(self.size()));
        self.copy(start..start.saturating_add(length), &mut read);
        Some(read)
    }

    fn visit<B>(
        &mut self,
        range: Range<usize>,
        end: bool,
        take: impl FnMut(&[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        if range.len() < READ_BYTES_MIN && !end {
            return ControlFlow::Continue(());
        }
        self.visit_in_place(&range, take)
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        if !rewrite.fits(self.size()) {
            return false;
        }
        // Envoy can drain the front of a body and append to its end, but not put anything in front, so the body is made anew, once.
        let mut whole = Vec::with_capacity(rewrite.length_after());
        self.copy(0..rewrite.range.start, &mut whole);
        whole.extend_from_slice(&rewrite.text);
        self.copy(rewrite.range.end..rewrite.length, &mut whole);
        whole.len() == rewrite.length_after() && self.replace(&whole)
    }

    fn received(&mut self) -> Option<u64> {
        self.filter.with_headers(Map::Request, |headers| received_body_bytes(&self.filter, headers))
    }
}

/// Wakes a stream's worker thread, from any thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waker(Envoy);

impl Waker {
    /// The waker of a stream, on its own thread. It must be deleted.
    pub(crate) fn of(filter: Filter) -> Self {
        // SAFETY: the filter is alive.
        Self(unsafe { abi::scheduler_new(filter.0) })
    }

    pub(crate) fn wake(self) {
        // SAFETY: whoever wakes holds the lock under which a waker is taken off its table before it is deleted.
        unsafe { abi::scheduler_commit(self.0, 0) };
    }

    pub(crate) fn delete(self) {
        // SAFETY: it is deleted once, when it is removed from its table.
        unsafe { abi::scheduler_delete(self.0) };
    }
}

/// Wakes the main thread for one configuration, from any thread.
#[derive(Debug)]
pub(crate) struct MainWaker(Envoy);

// SAFETY: Envoy documents that its scheduler may be used on any thread.
unsafe impl Send for MainWaker {}
// SAFETY: as above.
unsafe impl Sync for MainWaker {}

impl MainWaker {
    pub(crate) fn of(config: Envoy) -> Self {
        // SAFETY: the configuration is alive.
        Self(unsafe { abi::config_scheduler_new(config) })
    }

    pub(crate) fn wake(&self, event: u64) {
        // SAFETY: the scheduler lives as long as this value.
        unsafe { abi::config_scheduler_commit(self.0, event) };
    }
}

impl Drop for MainWaker {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { abi::config_scheduler_delete(self.0) };
    }
}

/// A gRPC stream to the companion. Envoy lets only the main thread use it.
pub(crate) mod grpc {
    use super::{Envoy, ModuleBytes, ModuleHeader, abi};

    /// Opens a stream of the method at `path` to `cluster`; `None`: Envoy can't.
    pub(crate) fn open(config: Envoy, cluster: &str, path: &str, more: Option<(&str, &str)>) -> Option<u64> {
        let mut headers = vec![
            ModuleHeader::new(b":method", b"POST"),
            ModuleHeader::new(b":path", path.as_bytes()),
            ModuleHeader::new(b":authority", cluster.as_bytes()),
            ModuleHeader::new(b"host", cluster.as_bytes()),
            ModuleHeader::new(b"content-type", b"application/grpc"),
            ModuleHeader::new(b"te", b"trailers"),
        ];
        headers.extend(more.map(|(name, value)| ModuleHeader::new(name.as_bytes(), value.as_bytes())));
        let mut stream = 0;
        // SAFETY: the configuration is alive, and Envoy copies all of it before it returns.
        let result = unsafe {
            abi::start_stream(
                config,
                &raw mut stream,
                ModuleBytes::new(cluster.as_bytes()),
                headers.as_ptr(),
                headers.len(),
                ModuleBytes::NONE,
                false,
                0,
            )
        };
        (result == abi::CALLOUT_SUCCESS).then_some(stream)
    }

    /// Bytes before each message.
    pub(crate) const PREFIX: usize = 5;

    /// Appends a message as gRPC writes it.
    pub(crate) fn append(messages: &mut Vec<u8>, message: &[u8]) {
        // Not compressed.
        messages.push(0);
        messages.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        messages.extend_from_slice(message);
    }

    /// Sends messages that [`append`] has written.
    pub(crate) fn send(config: Envoy, stream: u64, messages: &[u8]) {
        // SAFETY: the configuration is alive, and Envoy copies the bytes before it returns.
        unsafe { abi::send_data(config, stream, ModuleBytes::new(messages), false) };
    }

    /// Closes this side of a stream. Envoy still sends what it has.
    pub(crate) fn close(config: Envoy, stream: u64) {
        // SAFETY: the configuration is alive.
        unsafe { abi::send_data(config, stream, ModuleBytes::new(&[]), true) };
    }

    pub(crate) fn reset(config: Envoy, stream: u64) {
        // SAFETY: the configuration is alive.
        unsafe { abi::reset_http_stream(config, stream) };
    }
}
