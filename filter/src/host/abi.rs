//! The host functions of the proxy-wasm ABI 0.2.1 and of WASI preview 1. Each returns a status; 0 is success.

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
    pub(super) fn proxy_add_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
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
    pub(super) fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    pub(super) fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    pub(super) fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        cas: u32,
    ) -> u32;
    pub(super) fn proxy_register_shared_queue(name: *const u8, size: usize, queue: *mut u32) -> u32;
    pub(super) fn proxy_enqueue_shared_queue(queue: u32, data: *const u8, size: usize) -> u32;
    pub(super) fn proxy_dequeue_shared_queue(queue: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    pub(super) fn proxy_continue_stream(kind: u32) -> u32;
    pub(super) fn proxy_close_stream(kind: u32) -> u32;
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
