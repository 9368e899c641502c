//! `just fuzz companion_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::companion_frames::run(data));
