//! Host calls that can't panic.
//!
//! The SDK's own wrappers, `hostcalls` included, panic on a status they don't expect and on text that isn't UTF-8; a panic
//! costs every stream of the worker. So what runs per request is declared here, as the proxy-wasm ABI 0.2.1 and WASI
//! preview 1 have it, with every status a number: 0 is success, anything else makes the call `None` or `false`.

use core::ptr::null_mut;

use penstock_filter_core::{
    headers, identity::Properties, process_identity::RandomBits, rewrite::Held, session::Epoch,
    shared_data::SharedData, time::Instant,
};

/// Which buffer, in the ABI's numbers.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Buffer {
    RequestBody = 0,
    ResponseBody = 1,
    GrpcMessage = 5,
    PluginConfiguration = 7,
}

/// Which header map, in the ABI's numbers.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Map {
    Request = 0,
    Response = 2,
}

/// How loud, in the ABI's numbers.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Level {
    Info = 2,
    Warn = 3,
    Error = 4,
}

mod abi {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub(super) fn proxy_log(level: u32, text: *const u8, size: usize) -> u32;
        pub(super) fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub(super) fn proxy_get_buffer_bytes(
            kind: u32,
            start: usize,
            max: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_set_buffer_bytes(
            kind: u32,
            start: usize,
            length: usize,
            data: *const u8,
            size: usize,
        ) -> u32;
        pub(super) fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
        pub(super) fn proxy_replace_header_map_value(
            map: u32,
            key: *const u8,
            key_size: usize,
            value: *const u8,
            value_size: usize,
        ) -> u32;
        pub(super) fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
        pub(super) fn proxy_get_property(
            path: *const u8,
            path_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_shared_data(
            key: *const u8,
            key_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
            number: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_shared_data(
            key: *const u8,
            key_size: usize,
            value: *const u8,
            value_size: usize,
            number: u32,
        ) -> u32;
        pub(super) fn proxy_continue_stream(kind: u32) -> u32;
        pub(super) fn proxy_send_local_response(
            status: u32,
            details: *const u8,
            details_size: usize,
            body: *const u8,
            body_size: usize,
            headers: *const u8,
            headers_size: usize,
            grpc_status: i32,
        ) -> u32;
        pub(super) fn proxy_grpc_send(token: u32, message: *const u8, size: usize, end: u32) -> u32;
        pub(super) fn proxy_grpc_cancel(token: u32) -> u32;
        pub(super) fn proxy_grpc_close(token: u32) -> u32;
        pub(super) fn proxy_set_effective_context(context: u32) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
        pub(super) fn random_get(buffer: *mut u8, size: usize) -> u32;
    }
}

/// Runs a call that returns bytes which the host put into memory of ours.
fn owned(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data = null_mut();
    let mut size = 0;
    if call(&raw mut data, &raw mut size) != 0 {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the host allocated `size` bytes with this module's own allocator and gave them away.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

pub(crate) fn log(level: Level, text: &str) {
    // SAFETY: the host reads the text before it returns.
    unsafe { abi::proxy_log(level as u32, text.as_ptr(), text.len()) };
}

/// The monotonic clock.
pub(crate) fn now() -> Instant {
    const MONOTONIC: u32 = 1;
    let mut nanos = 0;
    // SAFETY: the host writes one u64.
    unsafe { abi::clock_time_get(MONOTONIC, 1, &raw mut nanos) };
    Instant::from_nanos(nanos)
}

/// Fresh random bits; none if the host has none to give.
pub(crate) fn draw() -> Option<RandomBits> {
    let mut bits = [0_u64; 5];
    // SAFETY: the host writes as many bytes as `bits` has, which any u64 may hold.
    let status = unsafe { abi::random_get(bits.as_mut_ptr().cast(), size_of_val(&bits)) };
    let [hi, lo, envoy, key @ ..] = bits;
    let [left, right] = key.map(u64::to_le_bytes);
    let mut key = [0; 16];
    let halves = left.into_iter().chain(right);
    key.iter_mut().zip(halves).for_each(|(to, from)| *to = from);
    (status == 0).then_some(RandomBits {
        epoch: Epoch { hi, lo },
        envoy,
        key,
    })
}

/// A whole header map, for `Headers::new`.
pub(crate) fn headers(map: Map) -> Vec<u8> {
    // SAFETY: both places outlive the call.
    owned(|data, size| unsafe { abi::proxy_get_header_map_pairs(map as u32, data, size) }).unwrap_or_default()
}

pub(crate) fn set_header(map: Map, name: &str, value: &str) {
    // SAFETY: the host copies both before it returns.
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

/// Copies `length` bytes of a buffer from `start` on, fewer at its end.
pub(crate) fn buffer(kind: Buffer, start: usize, length: usize) -> Option<Vec<u8>> {
    // SAFETY: both places outlive the call.
    owned(|data, size| unsafe { abi::proxy_get_buffer_bytes(kind as u32, start, length, data, size) })
}

/// Replaces the first `length` bytes of a buffer. False: the host refuses.
pub(crate) fn set_buffer(kind: Buffer, length: usize, bytes: &[u8]) -> bool {
    set_buffer_from(kind, 0, length, bytes)
}

/// Replaces bytes of a buffer from `start` on: Envoy takes its beginning, or what is past its end.
fn set_buffer_from(kind: Buffer, start: usize, length: usize, bytes: &[u8]) -> bool {
    // SAFETY: the host copies the bytes before it returns.
    unsafe { abi::proxy_set_buffer_bytes(kind as u32, start, length, bytes.as_ptr(), bytes.len()) == 0 }
}

/// The body of the request that is spoken of, while it is held.
pub(crate) struct Request;

impl Held for Request {
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

pub(crate) fn set_tick_period(millis: u32) {
    // SAFETY: takes a number.
    unsafe { abi::proxy_set_tick_period_milliseconds(millis) };
}

pub(crate) fn resume_request() {
    const REQUEST: u32 = 0;
    // SAFETY: takes a number.
    unsafe { abi::proxy_continue_stream(REQUEST) };
}

pub(crate) fn respond(status: u32, pairs: &[(&'static str, String)], body: &[u8]) {
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

/// Makes the host calls that follow speak of this context; false if it is gone.
pub(crate) fn speak_of(context: u32) -> bool {
    // SAFETY: takes a number.
    unsafe { abi::proxy_set_effective_context(context) == 0 }
}

pub(crate) fn send(token: u32, message: &[u8]) {
    // SAFETY: the host copies the message before it returns.
    unsafe { abi::proxy_grpc_send(token, message.as_ptr(), message.len(), 0) };
}

/// Ends our side of a stream; what was sent before still goes out.
pub(crate) fn close(token: u32) {
    // SAFETY: takes a number.
    unsafe { abi::proxy_grpc_close(token) };
}

/// Resets a stream.
pub(crate) fn cut(token: u32) {
    // SAFETY: takes a number.
    unsafe { abi::proxy_grpc_cancel(token) };
}

/// Shared data of all VMs with our `vm_id`. Envoy has no "set if there is none" of its own; but it compares the number
/// only with that of a value that is there, so a number that no value has sets just what is absent.
#[derive(Debug)]
pub(crate) struct HostSharedData;

impl SharedData for HostSharedData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        let mut number = 0;
        // SAFETY: all places outlive the call.
        let value = owned(|data, size| unsafe {
            abi::proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut number)
        })?;
        Some((value, number))
    }

    fn set(&self, key: &str, value: &[u8], replaces: Option<u32>) -> bool {
        const ANY: u32 = 0;
        const NO_VALUES: u32 = u32::MAX;
        let number = match replaces {
            None => ANY,
            Some(0) => NO_VALUES,
            Some(number) => number,
        };
        // SAFETY: the host copies key and value before it returns.
        unsafe {
            abi::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), number) == 0
        }
    }
}

/// The properties of the HTTP stream that is spoken of.
pub(crate) struct Stream;

impl Properties for Stream {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        let path = path.join("\0");
        // SAFETY: all places outlive the call.
        owned(|data, size| unsafe { abi::proxy_get_property(path.as_ptr(), path.len(), data, size) })
    }
}
