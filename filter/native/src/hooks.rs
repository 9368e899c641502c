//! The functions that Envoy calls.

use core::cell::Cell;
use core::ffi::{c_char, c_void};
use core::ptr::null;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::abi::{self, Envoy, EnvoyBytes, EnvoyHeader, Level, Map};
use crate::host::{self, Filter, LogEntry};
use crate::panics::{self, guard};
use crate::plugin::Plugin;
use crate::stream::{Status, Stream};

/// A pointer of the module's, which Envoy passes back.
type Own = *const c_void;

/// The configurations, by their text: the access logger of attempts is configured with the same text as the filter of its listener.
static PLUGINS: Mutex<Vec<(Vec<u8>, Weak<Plugin>)>> = Mutex::new(Vec::new());

thread_local! {
    /// The number of this worker thread; `None`: no stream has come yet.
    static WORKER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The value behind a pointer that Envoy passes back.
fn own<'a, T>(pointer: Own) -> &'a T {
    // SAFETY: Envoy passes back what `on_…_new` has returned, until the hook that destroys it.
    unsafe { &*pointer.cast::<T>() }
}

/// The stream behind a pointer. A hook may end its stream, and up to Envoy 1.40 that destroys it at once, so the hook holds it.
fn held(stream: Own) -> Rc<Stream> {
    // SAFETY: Envoy passes back what `on_http_filter_new` has returned, until the hook that destroys it.
    unsafe {
        Rc::increment_strong_count(stream.cast::<Stream>());
        Rc::from_raw(stream.cast::<Stream>())
    }
}

/// Runs a hook of a stream. `name`: Envoy's name of the event.
fn stream_hook(filter: Envoy, stream: Own, name: &str, hook: impl FnOnce(&Stream) -> Status) -> u32 {
    let stream = held(stream);
    let status = guard(|| asked(&stream, name, || hook(&stream))).unwrap_or_else(|| {
        if !stream.is_destroyed() {
            stream.count_panics();
            panics::fail(Filter(filter));
        }
        Status::Stop
    });
    status as u32
}

/// Runs a hook, with the panics that the request asks for.
#[cfg(feature = "panics")]
fn asked<T>(stream: &Stream, name: &str, hook: impl FnOnce() -> T) -> T {
    let asked = stream.asked();
    if asked == format!("before {name}") {
        panics::asked::panic();
    }
    panics::asked::note(&asked, name);
    let value = hook();
    if asked == format!("after {name}") {
        panics::asked::panic();
    }
    value
}

#[cfg(not(feature = "panics"))]
fn asked<T>(_: &Stream, _name: &str, hook: impl FnOnce() -> T) -> T {
    hook()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    abi::VERSION.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: Envoy,
    _name: EnvoyBytes,
    text: EnvoyBytes,
) -> Own {
    let text = host::bytes(text);
    // SAFETY: this is the main thread.
    let workers = usize::try_from(unsafe { abi::get_concurrency() }).unwrap_or(1);
    let plugin = guard(|| Plugin::new(config, text, workers));
    match plugin {
        Some(Ok(plugin)) => {
            let mut plugins = PLUGINS.lock().unwrap_or_else(PoisonError::into_inner);
            plugins.retain(|(_, plugin)| plugin.strong_count() > 0);
            plugins.push((text.to_vec(), Arc::downgrade(&plugin)));
            Arc::into_raw(plugin).cast()
        }
        Some(Err(error)) => {
            host::log(Level::Error, &format!("penstock: {error}"));
            null()
        }
        None => null(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: Own) {
    // SAFETY: the pointer is that of `on_http_filter_config_new`, and comes back no more.
    let plugin = unsafe { Arc::from_raw(config.cast::<Plugin>()) };
    plugin.end();
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(_: Envoy, config: Own, event: u64) {
    guard(|| own::<Plugin>(config).handle_event(event));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_headers(
    _: Envoy,
    config: Own,
    stream: u64,
    headers: *const EnvoyHeader,
    count: usize,
    _end: bool,
) {
    guard(|| {
        let headers = slice(headers, count);
        let status = headers.iter().find(|header| host::bytes(header.key) == b":status");
        let status = status.map_or(&b""[..], |header| host::bytes(header.value));
        own::<Plugin>(config).handle_stream_headers(stream, status);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_data(
    _: Envoy,
    config: Own,
    stream: u64,
    chunks: *const EnvoyBytes,
    count: usize,
    _end: bool,
) {
    guard(|| {
        let chunks = slice(chunks, count).iter().map(|chunk| host::bytes(*chunk));
        own::<Plugin>(config).handle_stream_data(stream, chunks);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_complete(
    _: Envoy,
    config: Own,
    stream: u64,
) {
    guard(|| own::<Plugin>(config).handle_stream_end(stream));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_reset(
    _: Envoy,
    config: Own,
    stream: u64,
    _reason: u32,
) {
    guard(|| own::<Plugin>(config).handle_stream_end(stream));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_new(config: Own, filter: Envoy) -> Own {
    // SAFETY: Envoy keeps the configuration, which holds one reference, while it makes a filter of it.
    let plugin = unsafe {
        Arc::increment_strong_count(config.cast::<Plugin>());
        Arc::from_raw(config.cast::<Plugin>())
    };
    // Without a filter, Envoy ends the stream.
    let stream = guard(|| Rc::new(Stream::new(plugin, Filter(filter))));
    stream.map_or(null(), |stream| {
        WORKER.set(Some(stream.worker()));
        stream.count_panics();
        Rc::into_raw(stream).cast()
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    filter: Envoy,
    stream: Own,
    end: bool,
) -> u32 {
    stream_hook(filter, stream, "request_headers", |stream| stream.on_request_headers(end))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_body(filter: Envoy, stream: Own, end: bool) -> u32 {
    stream_hook(filter, stream, "request_body", |stream| stream.on_request_body(end))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_trailers(filter: Envoy, stream: Own) -> u32 {
    stream_hook(filter, stream, "request_trailers", Stream::on_request_trailers)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    filter: Envoy,
    stream: Own,
    end: bool,
) -> u32 {
    stream_hook(filter, stream, "response_headers", |stream| stream.on_response_headers(end))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    filter: Envoy,
    stream: Own,
    end: bool,
) -> u32 {
    stream_hook(filter, stream, "response_body", |stream| stream.on_response_body(end))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(filter: Envoy, stream: Own) -> u32 {
    stream_hook(filter, stream, "response_trailers", Stream::on_response_trailers)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(_: Envoy, stream: Own) {
    guard(|| {
        let stream = own::<Stream>(stream);
        asked(stream, "complete", || stream.on_complete());
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(_: Envoy, stream: Own, _event: u64) {
    let stream = held(stream);
    guard(|| stream.run_actions());
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_destroy(stream: Own) {
    // SAFETY: the pointer is that of `on_http_filter_new`, and comes back no more.
    let stream = unsafe { Rc::from_raw(stream.cast::<Stream>()) };
    guard(|| stream.on_destroy());
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_config_new(
    _: Envoy,
    _name: EnvoyBytes,
    text: EnvoyBytes,
) -> Own {
    Box::into_raw(Box::new(host::bytes(text).to_vec())).cast_const().cast()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_config_destroy(config: Own) {
    // SAFETY: the pointer is that of `on_access_logger_config_new`, and comes back no more.
    drop(unsafe { Box::from_raw(config.cast_mut().cast::<Vec<u8>>()) });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_new(config: Own, _: Envoy) -> Own {
    config
}

/// The log of attempts upstream, which the router of a listener writes for some statuses.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_log(entry: Envoy, config: Own, _kind: u32) {
    guard(|| {
        let Some(worker) = WORKER.get() else {
            return;
        };
        // Two listeners may have the same configuration. The attempt is of a request of one of them.
        let plugins = plugins_with(own(config));
        let entry = LogEntry(entry);
        entry.with_headers(Map::Request, |request| {
            entry.with_headers(Map::Response, |response| {
                for plugin in plugins {
                    plugin.with_seat(worker, |seat| {
                        seat.worker.handle_attempt_log(host::now(), request, response, &entry);
                    });
                }
            });
        });
    });
}

/// The configurations with this text.
fn plugins_with(text: &Vec<u8>) -> Vec<Arc<Plugin>> {
    let plugins = PLUGINS.lock().unwrap_or_else(PoisonError::into_inner);
    plugins.iter().filter(|(known, _)| known == text).filter_map(|(_, plugin)| plugin.upgrade()).collect()
}

fn slice<'a, T>(items: *const T, count: usize) -> &'a [T] {
    if items.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: Envoy passes an array of so many items, which lives until the end of the hook.
    unsafe { core::slice::from_raw_parts(items, count) }
}

/// Hooks that Envoy requires of every module, for what this one never asks for.
macro_rules! unused_hooks {
    ($($name:ident($($argument:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $argument),*) {}
        )*
    };
}

unused_hooks! {
    envoy_dynamic_module_on_http_filter_http_callout_done(Envoy, Own, u64, u32, *const EnvoyHeader, usize, *const EnvoyBytes, usize);
    envoy_dynamic_module_on_http_filter_http_stream_headers(Envoy, Own, u64, *const EnvoyHeader, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_data(Envoy, Own, u64, *const EnvoyBytes, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_trailers(Envoy, Own, u64, *const EnvoyHeader, usize);
    envoy_dynamic_module_on_http_filter_http_stream_complete(Envoy, Own, u64);
    envoy_dynamic_module_on_http_filter_http_stream_reset(Envoy, Own, u64, u32);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(Envoy, Own);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(Envoy, Own);
    envoy_dynamic_module_on_http_filter_per_route_config_destroy(Own);
    envoy_dynamic_module_on_http_filter_config_http_callout_done(Envoy, Own, u64, u32, *const EnvoyHeader, usize, *const EnvoyBytes, usize);
    envoy_dynamic_module_on_http_filter_config_http_stream_trailers(Envoy, Own, u64, *const EnvoyHeader, usize);
    envoy_dynamic_module_on_access_logger_destroy(Own);
    envoy_dynamic_module_on_access_logger_flush(Own);
}

/// A local reply of Envoy's goes on.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_local_reply(
    _: Envoy,
    _: Own,
    _: u32,
    _: EnvoyBytes,
    _: bool,
) -> u32 {
    0
}

/// Routes have no configuration of this filter.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(_: EnvoyBytes, _: EnvoyBytes) -> Own {
    null()
}
