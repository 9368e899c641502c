//! Host calls that can't panic.
//!
//! The SDK's wrappers, including `hostcalls`, panic on an unexpected status and on text that isn't UTF-8. A panic ends every
//! stream of the worker. So the calls of the request path are declared here (`abi`), with the status as a number: any status
//! except 0 makes the call return `None` or `false`.

// The path is given because a study includes this file by its path, for which a module's file is looked up elsewhere.
#[path = "host/abi.rs"]
mod abi;

use core::ptr::null_mut;

use penstock_filter_core::headers::{self, Headers};
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::properties::{Properties, received_body_bytes};
use penstock_filter_core::rewrite::{BodyEnds, BufferedBody, Rewrite};
use penstock_filter_core::session::Epoch;
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_filter_core::time::{Clock, Instant};

/// A buffer, by its number in the ABI.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Buffer {
    RequestBody = 0,
    ResponseBody = 1,
    GrpcMessage = 5,
    PluginConfiguration = 7,
}

/// A header map, by its number in the ABI.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Map {
    Request = 0,
    Response = 2,
}

/// A log level, by its number in the ABI.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Level {
    Info = 2,
    Warn = 3,
    Error = 4,
}

/// Makes a call that returns bytes in memory that the host allocates in this module.
fn owned(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data = null_mut();
    let mut size = 0;
    if call(&raw mut data, &raw mut size) != 0 {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the host allocated `size` bytes with this module's allocator and passed on their ownership.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

pub(crate) fn log(level: Level, text: &str) {
    // SAFETY: the host reads the text before it returns.
    unsafe { abi::proxy_log(level as u32, text.as_ptr(), text.len()) };
}

/// Reads the monotonic clock.
pub(crate) fn now() -> Instant {
    const MONOTONIC: u32 = 1;
    let mut nanos = 0;
    // SAFETY: the host writes one u64.
    unsafe { abi::clock_time_get(MONOTONIC, 1, &raw mut nanos) };
    Instant::from_nanos(nanos)
}

/// The host's monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct HostClock;

impl Clock for HostClock {
    fn now(self) -> Instant {
        now()
    }
}

/// Draws the random bits of a root context; `None` if the host fails.
pub(crate) fn random_bits() -> Option<RandomBits> {
    let mut bits = [0_u64; 5];
    // SAFETY: the host writes as many bytes as `bits` has, and any bytes are valid numbers.
    let status = unsafe { abi::random_get(bits.as_mut_ptr().cast(), size_of_val(&bits)) };
    let [hi, lo, envoy, key @ ..] = bits;
    let [left, right] = key.map(u64::to_le_bytes);
    let mut key = [0; 16];
    let halves = left.into_iter().chain(right);
    key.iter_mut().zip(halves).for_each(|(target, byte)| *target = byte);
    (status == 0).then_some(RandomBits { epoch: Epoch { hi, lo }, envoy, key })
}

/// Fetches a whole header map, for `Headers::new`.
pub(crate) fn headers(map: Map) -> Vec<u8> {
    // SAFETY: both pointers are valid during the call.
    owned(|data, size| unsafe { abi::proxy_get_header_map_pairs(map as u32, data, size) }).unwrap_or_default()
}

pub(crate) fn add_header(map: Map, name: &str, value: &str) {
    // SAFETY: the host copies both strings before it returns.
    unsafe {
        abi::proxy_add_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
    };
}

pub(crate) fn set_header(map: Map, name: &str, value: &str) {
    // SAFETY: the host copies both strings before it returns.
    unsafe {
        abi::proxy_replace_header_map_value(
            map as u32,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    };
}

pub(crate) fn remove_header(map: Map, name: &str) {
    // SAFETY: the host reads the name before it returns.
    unsafe { abi::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) };
}

/// Sets a property of the current HTTP stream. Envoy's configuration finds it in the filter state, under `wasm.` and its name.
pub(crate) fn set_property(name: &str, value: &str) {
    // SAFETY: the host copies both strings before it returns.
    unsafe { abi::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

/// Copies `length` bytes of a buffer from `start` on, or fewer at its end.
pub(crate) fn buffer(kind: Buffer, start: usize, length: usize) -> Option<Vec<u8>> {
    // SAFETY: both pointers are valid during the call.
    owned(|data, size| unsafe { abi::proxy_get_buffer_bytes(kind as u32, start, length, data, size) })
}

/// Replaces the first `length` bytes of a buffer. Returns `false` if the host fails.
pub(crate) fn set_buffer(kind: Buffer, length: usize, bytes: &[u8]) -> bool {
    set_buffer_from(kind, 0, length, bytes)
}

/// Replaces bytes of a buffer from `start` on. Envoy supports only the beginning and positions past the end.
fn set_buffer_from(kind: Buffer, start: usize, length: usize, bytes: &[u8]) -> bool {
    // SAFETY: the host copies the bytes before it returns.
    unsafe { abi::proxy_set_buffer_bytes(kind as u32, start, length, bytes.as_ptr(), bytes.len()) == 0 }
}

/// The buffered body of the current HTTP stream's request.
pub(crate) struct RequestBody;

impl BodyEnds for RequestBody {
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
        buffer(Buffer::RequestBody, start, length)
    }

    fn replace_front(&mut self, length: usize, bytes: &[u8]) -> bool {
        set_buffer(Buffer::RequestBody, length, bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        const PAST_THE_END: usize = usize::MAX;
        set_buffer_from(Buffer::RequestBody, PAST_THE_END, 0, bytes)
    }
}

impl BufferedBody for RequestBody {
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
        BodyEnds::read(self, start, length)
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        rewrite.apply_at_ends(self)
    }

    fn received(&mut self) -> Option<u64> {
        received_body_bytes(&StreamProperties, Headers::new(&headers(Map::Request)))
    }
}

pub(crate) fn set_tick_period(millis: u32) {
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_set_tick_period_milliseconds(millis) };
}

/// Registers a queue of the current context, which the host calls back for each entry. `None`: the host has no queues.
pub(crate) fn register_queue(name: &str) -> Option<u32> {
    let mut queue = 0;
    // SAFETY: the host reads the name, and writes one u32.
    let status = unsafe { abi::proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) };
    (status == 0).then_some(queue)
}

/// Adds an entry to a queue. The host calls `on_queue_ready` once it has handled the events of the event loop that are present.
pub(crate) fn enqueue(queue: u32) -> bool {
    // SAFETY: an entry without bytes is never read.
    unsafe { abi::proxy_enqueue_shared_queue(queue, core::ptr::null(), 0) == 0 }
}

/// Removes an entry from a queue.
pub(crate) fn dequeue(queue: u32) {
    // SAFETY: both pointers are valid during the call.
    owned(|data, size| unsafe { abi::proxy_dequeue_shared_queue(queue, data, size) });
}

pub(crate) fn resume_request() {
    const REQUEST: u32 = 0;
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_continue_stream(REQUEST) };
}

pub(crate) fn resume_response() {
    const RESPONSE: u32 = 1;
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_continue_stream(RESPONSE) };
}

/// Resets the current HTTP stream on both sides.
pub(crate) fn reset_stream() {
    const RESPONSE: u32 = 1;
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_close_stream(RESPONSE) };
}

pub(crate) fn send_local_reply(status: u32, pairs: &[(&'static str, String)], body: &[u8]) {
    const NOT_GRPC: i32 = -1;
    const DETAILS: &str = "penstock";
    let pairs = headers::serialize(pairs.iter().map(|(name, value)| (*name, value.as_str())));
    // SAFETY: the host copies all of it before it returns.
    unsafe {
        abi::proxy_send_local_response(
            status,
            DETAILS.as_ptr(),
            DETAILS.len(),
            body.as_ptr(),
            body.len(),
            pairs.as_ptr(),
            pairs.len(),
            NOT_GRPC,
        )
    };
}

/// Makes a context the current one, which the following host calls affect. Returns `false` if it no longer exists.
pub(crate) fn set_current_context(context: u32) -> bool {
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_set_effective_context(context) == 0 }
}

pub(crate) fn send_grpc(token: u32, message: &[u8]) {
    // SAFETY: the host copies the message before it returns.
    unsafe { abi::proxy_grpc_send(token, message.as_ptr(), message.len(), 0) };
}

/// Closes this side of a gRPC stream. The host still sends the pending messages.
pub(crate) fn close_grpc(token: u32) {
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_grpc_close(token) };
}

pub(crate) fn reset_grpc(token: u32) {
    // SAFETY: the call has no pointers.
    unsafe { abi::proxy_grpc_cancel(token) };
}

/// Envoy's data that all VMs with this module's `vm_id` share. Its compare-and-swap checks the version only if the key has a
/// value. So a version that no value ever has writes only if the value is absent.
#[derive(Debug)]
pub(crate) struct HostSharedData;

impl SharedData for HostSharedData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        let mut version = 0;
        // SAFETY: all pointers are valid during the call.
        let value = owned(|data, size| unsafe {
            abi::proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut version)
        })?;
        Some((value, version))
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        const UNCHECKED: u32 = 0;
        const NEVER_USED: u32 = u32::MAX;
        let cas = match condition {
            SetIf::Always => UNCHECKED,
            SetIf::Absent => NEVER_USED,
            SetIf::Version(version) => version,
        };
        // SAFETY: the host copies key and value before it returns.
        unsafe { abi::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) == 0 }
    }
}

/// The properties of the current HTTP stream.
pub(crate) struct StreamProperties;

impl Properties for StreamProperties {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        let path = path.join("\0");
        // SAFETY: all pointers are valid during the call.
        owned(|data, size| unsafe { abi::proxy_get_property(path.as_ptr(), path.len(), data, size) })
    }
}
