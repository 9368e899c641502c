//! `just fuzz body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::body::run(data));
