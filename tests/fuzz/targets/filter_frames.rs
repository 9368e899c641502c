//! `just fuzz filter_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::filter_frames::run(data));
