//! The callbacks of Envoy's dynamic modules that the filter uses, and their types.
//!
//! Read from `source/extensions/dynamic_modules/abi/abi.h` of Envoy 1.40. Envoy keeps an interface for one later minor version. Every call is
//! unsafe because a pointer that Envoy gave must still be alive: a filter's until its `destroy` hook, a configuration's likewise, and
//! those of headers and bodies until the end of the hook or the next change.

use core::ffi::{c_char, c_void};

/// The version of the interface; `on_program_init` returns it.
pub(crate) const VERSION: &core::ffi::CStr = c"v0.2.0";

/// Bytes of Envoy's.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EnvoyBytes {
    pub(crate) data: *const u8,
    pub(crate) length: usize,
}

impl EnvoyBytes {
    pub(crate) const EMPTY: Self = Self { data: core::ptr::null(), length: 0 };
}

/// Bytes of the module's.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ModuleBytes {
    data: *const u8,
    length: usize,
}

impl ModuleBytes {
    /// No bytes at all: a header of this value is removed.
    pub(crate) const NONE: Self = Self { data: core::ptr::null(), length: 0 };

    pub(crate) const fn new(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), length: bytes.len() }
    }
}

/// A header of Envoy's.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EnvoyHeader {
    pub(crate) key: EnvoyBytes,
    pub(crate) value: EnvoyBytes,
}

/// A header of the module's.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ModuleHeader {
    key: ModuleBytes,
    value: ModuleBytes,
}

impl ModuleHeader {
    pub(crate) const fn new(key: &[u8], value: &[u8]) -> Self {
        Self { key: ModuleBytes::new(key), value: ModuleBytes::new(value) }
    }
}

/// `envoy_dynamic_module_type_http_header_type`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Map {
    Request = 0,
    RequestTrailers = 1,
    Response = 2,
}

/// `envoy_dynamic_module_type_http_body_type`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Body {
    ReceivedRequest = 0,
    BufferedRequest = 1,
    ReceivedResponse = 2,
    BufferedResponse = 3,
}

/// `envoy_dynamic_module_type_log_level`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Level {
    Info = 2,
    Warn = 3,
    Error = 4,
}

/// `envoy_dynamic_module_type_attribute_id`: the attributes that the filter reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Attribute {
    RequestTotalSize = 14,
    ResponseCodeDetails = 16,
    ResponseFlags = 17,
    SourceAddress = 24,
    UpstreamAddress = 41,
    UpstreamLocalAddress = 51,
    UpstreamTransportFailureReason = 52,
    UpstreamRequestAttemptCount = 53,
}

/// `envoy_dynamic_module_type_http_filter_stream_reset_reason`.
pub(crate) const LOCAL_RESET: u32 = 0;
/// `envoy_dynamic_module_type_metrics_result`.
pub(crate) const METRICS_SUCCESS: u32 = 0;
/// `envoy_dynamic_module_type_http_callout_init_result`.
pub(crate) const CALLOUT_SUCCESS: u32 = 0;

/// A pointer of Envoy's to a filter, a configuration, a scheduler or a log entry.
pub(crate) type Envoy = *mut c_void;

unsafe extern "C" {
    #[link_name = "envoy_dynamic_module_callback_log"]
    pub(crate) fn log(level: Level, message: ModuleBytes);
    #[link_name = "envoy_dynamic_module_callback_get_concurrency"]
    pub(crate) fn get_concurrency() -> u32;

    #[link_name = "envoy_dynamic_module_callback_http_filter_config_define_counter"]
    pub(crate) fn define_counter(
        config: Envoy,
        name: ModuleBytes,
        labels: *const ModuleBytes,
        count: usize,
        counter: *mut usize,
    ) -> u32;
    #[link_name = "envoy_dynamic_module_callback_http_filter_increment_counter"]
    pub(crate) fn increment_counter(
        filter: Envoy,
        counter: usize,
        labels: *const ModuleBytes,
        count: usize,
        value: u64,
    ) -> u32;

    #[link_name = "envoy_dynamic_module_callback_http_filter_get_worker_index"]
    pub(crate) fn worker_index(filter: Envoy) -> u32;
    #[link_name = "envoy_dynamic_module_callback_http_get_headers_size"]
    pub(crate) fn headers_size(filter: Envoy, map: Map) -> usize;
    #[link_name = "envoy_dynamic_module_callback_http_get_headers"]
    pub(crate) fn headers(filter: Envoy, map: Map, headers: *mut EnvoyHeader) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_set_header"]
    pub(crate) fn set_header(filter: Envoy, map: Map, key: ModuleBytes, value: ModuleBytes) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_add_header"]
    pub(crate) fn add_header(filter: Envoy, map: Map, key: ModuleBytes, value: ModuleBytes) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_clear_route_cache"]
    pub(crate) fn clear_route_cache(filter: Envoy);
    #[link_name = "envoy_dynamic_module_callback_http_set_filter_state_bytes"]
    pub(crate) fn set_filter_state(filter: Envoy, key: ModuleBytes, value: ModuleBytes) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_send_response"]
    pub(crate) fn send_response(
        filter: Envoy,
        status: u32,
        headers: *const ModuleHeader,
        count: usize,
        body: ModuleBytes,
        details: ModuleBytes,
    );
    #[link_name = "envoy_dynamic_module_callback_http_filter_reset_stream"]
    pub(crate) fn reset_stream(filter: Envoy, reason: u32, details: ModuleBytes);
    #[link_name = "envoy_dynamic_module_callback_http_filter_recreate_stream"]
    pub(crate) fn recreate_stream(filter: Envoy, headers: *const ModuleHeader, count: usize) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_set_upstream_override_host"]
    pub(crate) fn set_upstream_host(filter: Envoy, address: ModuleBytes, strict: bool) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_filter_continue_decoding"]
    pub(crate) fn continue_decoding(filter: Envoy);
    #[link_name = "envoy_dynamic_module_callback_http_filter_continue_encoding"]
    pub(crate) fn continue_encoding(filter: Envoy);

    #[link_name = "envoy_dynamic_module_callback_http_get_body_size"]
    pub(crate) fn body_size(filter: Envoy, body: Body) -> usize;
    #[link_name = "envoy_dynamic_module_callback_http_get_body_chunks_size"]
    pub(crate) fn body_chunks_size(filter: Envoy, body: Body) -> usize;
    #[link_name = "envoy_dynamic_module_callback_http_get_body_chunks"]
    pub(crate) fn body_chunks(filter: Envoy, body: Body, chunks: *mut EnvoyBytes) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_append_body"]
    pub(crate) fn append_body(filter: Envoy, body: Body, bytes: ModuleBytes) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_drain_body"]
    pub(crate) fn drain_body(filter: Envoy, body: Body, length: usize) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_received_buffered_request_body"]
    pub(crate) fn received_buffered_request(filter: Envoy) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_received_buffered_response_body"]
    pub(crate) fn received_buffered_response(filter: Envoy) -> bool;

    #[link_name = "envoy_dynamic_module_callback_http_filter_get_attribute_string"]
    pub(crate) fn attribute_text(filter: Envoy, attribute: Attribute, value: *mut EnvoyBytes) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_filter_get_attribute_int"]
    pub(crate) fn attribute_number(filter: Envoy, attribute: Attribute, value: *mut u64) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_get_filter_state_bytes"]
    pub(crate) fn filter_state(filter: Envoy, key: ModuleBytes, value: *mut EnvoyBytes) -> bool;

    #[link_name = "envoy_dynamic_module_callback_http_filter_scheduler_new"]
    pub(crate) fn scheduler_new(filter: Envoy) -> Envoy;
    #[link_name = "envoy_dynamic_module_callback_http_filter_scheduler_commit"]
    pub(crate) fn scheduler_commit(scheduler: Envoy, event: u64);
    #[link_name = "envoy_dynamic_module_callback_http_filter_scheduler_delete"]
    pub(crate) fn scheduler_delete(scheduler: Envoy);
    #[link_name = "envoy_dynamic_module_callback_http_filter_config_scheduler_new"]
    pub(crate) fn config_scheduler_new(config: Envoy) -> Envoy;
    #[link_name = "envoy_dynamic_module_callback_http_filter_config_scheduler_commit"]
    pub(crate) fn config_scheduler_commit(scheduler: Envoy, event: u64);
    #[link_name = "envoy_dynamic_module_callback_http_filter_config_scheduler_delete"]
    pub(crate) fn config_scheduler_delete(scheduler: Envoy);

    #[link_name = "envoy_dynamic_module_callback_http_filter_config_start_http_stream"]
    pub(crate) fn start_stream(
        config: Envoy,
        stream: *mut u64,
        cluster: ModuleBytes,
        headers: *const ModuleHeader,
        count: usize,
        body: ModuleBytes,
        end: bool,
        timeout_ms: u64,
    ) -> u32;
    #[link_name = "envoy_dynamic_module_callback_http_filter_config_stream_send_data"]
    pub(crate) fn send_data(config: Envoy, stream: u64, bytes: ModuleBytes, end: bool) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_filter_config_reset_http_stream"]
    pub(crate) fn reset_http_stream(config: Envoy, stream: u64);

    #[link_name = "envoy_dynamic_module_callback_access_logger_get_headers_size"]
    pub(crate) fn logged_headers_size(entry: Envoy, map: Map) -> usize;
    #[link_name = "envoy_dynamic_module_callback_access_logger_get_headers"]
    pub(crate) fn logged_headers(entry: Envoy, map: Map, headers: *mut EnvoyHeader) -> bool;
    #[link_name = "envoy_dynamic_module_callback_access_logger_get_response_flags"]
    pub(crate) fn logged_flags(entry: Envoy) -> u64;
    #[link_name = "envoy_dynamic_module_callback_access_logger_get_upstream_pool_ready_duration_ns"]
    pub(crate) fn logged_pool_ready_ns(entry: Envoy) -> i64;
    #[link_name = "envoy_dynamic_module_callback_access_logger_get_attribute_string"]
    pub(crate) fn logged_text(entry: Envoy, attribute: Attribute, value: *mut EnvoyBytes) -> bool;
}

const _: () = assert!(size_of::<c_char>() == 1);
